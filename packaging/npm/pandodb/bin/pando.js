#!/usr/bin/env node
// `pando …`: runs the program of this platform, hands it the signals, and ends as it ended.
'use strict';
const { spawn } = require('node:child_process');
const { program } = require('..');

const child = spawn(program(), process.argv.slice(2), { stdio: 'inherit' });
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => child.kill(signal));
child.once('error', (error) => { console.error(`pando: ${error.message}`); process.exit(1); });
child.once('exit', (code, signal) => {
  if (signal) { process.removeAllListeners(signal); process.kill(process.pid, signal); } else process.exit(code);
});
