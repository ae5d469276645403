// The PandoDB server: where its program is, and a server of one's own for tests.
'use strict';
const { spawn } = require('node:child_process');
const fs = require('node:fs');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');

/** The path of the server's program: PANDO_BIN, or the one of this platform's package. */
function program() {
  if (process.env.PANDO_BIN) return process.env.PANDO_BIN;
  const name = `pandodb-${process.platform}-${process.arch}`;
  try {
    return require.resolve(`${name}/bin/pando`);
  } catch {
    throw new Error(`there is no PandoDB for this platform: the package ${name} is not installed`);
  }
}

function freePort() {
  return new Promise((resolve, reject) => {
    const probe = net.createServer();
    probe.once('error', reject);
    probe.listen(0, '127.0.0.1', () => {
      const { port } = probe.address();
      probe.close(() => resolve(port));
    });
  });
}

/** Whether the log says, after its first `before` bytes, that its server is ready. On the port somebody else may answer. */
function saysReady(log, before) {
  return fs.existsSync(log) && fs.readFileSync(log).subarray(before).includes('"Waiting for connections"');
}

/** Starts a server on loopback and waits until it listens. */
async function start({ path: directory, port, args = [], timeoutMs = 30000 } = {}) {
  const own = directory ? undefined : fs.mkdtempSync(path.join(os.tmpdir(), 'pando-'));
  const data = directory ?? path.join(own, 'data');
  const log = own ? path.join(own, 'server.log') : `${directory}.log`;
  const remove = () => own && fs.rmSync(own, { recursive: true, force: true });
  // Nothing waits for the disk where the data goes with the server, unless the user wants it to.
  const durability = own && !args.some((word) => word.startsWith('--durability')) ? ['--durability', 'none'] : [];
  // A free port may be taken by another before the server has it: then another one is tried.
  for (let attempt = 0; attempt < (port ? 1 : 5); attempt++) {
    const at = port || await freePort();
    const before = fs.existsSync(log) ? fs.statSync(log).size : 0;
    const child = spawn(program(), ['serve', '--dbpath', data, '--port', String(at), '--bind', '127.0.0.1', '--no-console', '--log-path', log, '--logappend', ...durability, ...args],
      { stdio: 'ignore' });
    let ended = false;
    const gone = new Promise((resolve) => {
      child.once('exit', () => { ended = true; resolve(); });
      child.once('error', () => { ended = true; resolve(); });
    });
    const kill = () => child.kill('SIGKILL');
    process.once('exit', kill);
    const stop = async () => {
      // What waits for the end keeps the program running until then.
      child.ref();
      // Nobody wants the data of a temporary directory.
      child.kill(own ? 'SIGKILL' : 'SIGTERM');
      await gone;
      process.removeListener('exit', kill);
      remove();
    };
    const end = Date.now() + timeoutMs;
    while (!ended) {
      if (saysReady(log, before)) {
        // The server alone does not keep a program running.
        child.unref();
        return { uri: `mongodb://127.0.0.1:${at}/`, port: at, pid: child.pid, stop };
      }
      if (Date.now() > end) {
        await stop();
        throw new Error(`pando serve was not ready within ${timeoutMs} ms`);
      }
      await new Promise((resolve) => setTimeout(resolve, 2));
    }
    process.removeListener('exit', kill);
  }
  const text = fs.existsSync(log) ? fs.readFileSync(log, 'utf8').slice(-2000) : 'it wrote no log';
  remove();
  throw new Error(`pando serve did not start: ${text}`);
}

module.exports = { program, start };
