// Starts the built server on a loopback port and a directory of its own, and ends it when the tests of a file are done.

import { execFileSync, spawn } from 'node:child_process';
import { mkdtempSync, rmSync, existsSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { MongoClient } from 'mongodb';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..');
const binary = process.env.PANDO_BIN ?? path.join(root, 'target/debug/pando');

export const freePort = () =>
  new Promise((resolve, reject) => {
    const probe = createServer();
    probe.on('error', reject);
    probe.listen(0, '127.0.0.1', () => {
      const { port } = probe.address();
      probe.close(() => resolve(port));
    });
  });

export const startServer = (...options) => launch(options, '');

/// A server of a set that is not there yet.
export const startMember = (set) => launch(['--replSet', set], '?directConnection=true');

/// A cluster of two shards with a router, by one command: where it is, and how it ends.
export async function startCluster() {
  const dir = mkdtempSync(path.join(tmpdir(), 'pando-cluster-'));
  const pando = (...words) => execFileSync(binary, ['cluster', ...words, '--dir', dir], { encoding: 'utf8', timeout: 120_000 });
  for (let tries = 0; ; tries += 1) {
    const port = await freePort();
    try {
      execFileSync(binary, ['cluster', 'up', '--shards', '2', '--dir', dir, '--port', String(port), '--', '--cache', '32MB'], { timeout: 120_000 });
      return {
        uri: `mongodb://localhost:${port}/`,
        async stop() {
          pando('down');
          rmSync(dir, { recursive: true, force: true });
        },
      };
    } catch (error) {
      // One of the ports behind the first may be somebody's.
      if (tries >= 10 || !String(error.stderr).includes('cannot be used')) throw error;
    }
  }
}

/// A server that asks for a login and for TLS, with a user `root`, one who is the certificate of client.pem, and the folder of
/// the certificates.
export async function startSecureServer() {
  const certificates = mkdtempSync(path.join(tmpdir(), 'pando-certificates-'));
  execFileSync('bash', [path.join(root, 'tests/certificates.sh'), certificates]);
  const at = (name) => path.join(certificates, name);
  const tls = ['--tlsMode', 'requireTLS', '--tlsCertificateKeyFile', at('server.pem'), '--tlsCAFile', at('authority.pem')];
  const query = new URLSearchParams({ tls: 'true', tlsCAFile: at('authority.pem'), directConnection: 'true' });
  const server = await launch(['--auth', '--tlsAllowConnectionsWithoutCertificates', ...tls], `?${query}`);
  const first = new MongoClient(server.uri);
  await first.db('admin').command({ createUser: 'root', pwd: 'secret', roles: ['root'] });
  await first.close();
  const admin = new MongoClient(server.uri, { auth: { username: 'root', password: 'secret' } });
  await admin.db('$external').command({ createUser: 'CN=ann,O=Pando', roles: [{ role: 'readWrite', db: 'shop' }] });
  await admin.close();
  return {
    ...server,
    at,
    async stop() {
      await server.stop();
      rmSync(certificates, { recursive: true, force: true });
    },
  };
}

async function launch(options, query) {
  if (!existsSync(binary)) throw new Error(`there is no server at ${binary}: build it, or name it with PANDO_BIN`);
  const dir = mkdtempSync(path.join(tmpdir(), 'pando-node-'));
  const port = await freePort();
  let said = '';
  const child = spawn(binary, ['serve', '--dbpath', path.join(dir, 'data'), '--port', String(port), ...options], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (part) => (said = (said + part).slice(-20000)));
  const ended = new Promise((resolve) => child.on('exit', resolve));
  const uri = `mongodb://127.0.0.1:${port}/${query}`;
  const deadline = Date.now() + 60_000;
  for (;;) {
    if (child.exitCode !== null) throw new Error(`the server ended with ${child.exitCode}:\n${said}`);
    const client = new MongoClient(uri, { serverSelectionTimeoutMS: 500 });
    try {
      await client.db('admin').command({ ping: 1 });
      break;
    } catch (error) {
      if (Date.now() > deadline) throw new Error(`the server does not answer: ${error}\n${said}`);
      await new Promise((resolve) => setTimeout(resolve, 50));
    } finally {
      await client.close();
    }
  }
  return {
    uri,
    port,
    async stop() {
      child.kill('SIGTERM');
      const forced = setTimeout(() => child.kill('SIGKILL'), 20_000);
      await ended;
      clearTimeout(forced);
      rmSync(dir, { recursive: true, force: true });
    },
  };
}
