// A broker of its own for programs that are not run by `cargo xtask peers`: PEERS_BINARY on free ports.

import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'

async function freePort() {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address()
  server.close()
  await once(server, 'close')
  return port
}

/** Starts the broker, announces its ports as `cargo xtask peers` does, and returns its process and what ends it. */
export async function serve(...settings) {
  const directory = mkdtempSync(join(tmpdir(), 'braidmq-serve-'))
  const arguments_ = ['serve', '--data-dir', directory]
  for (const name of ['TCP', 'WS', 'QUIC', 'HTTP']) {
    process.env[`PEERS_PACED_${name}`] = String(await freePort())
    arguments_.push(`--${name.toLowerCase()}`, `127.0.0.1:${process.env[`PEERS_PACED_${name}`]}`)
  }
  for (const setting of settings) arguments_.push('--set', setting)
  const child = spawn(process.env.PEERS_BINARY, arguments_, { stdio: ['ignore', 'pipe', 'inherit'] })
  for await (const line of createInterface({ input: child.stdout })) {
    if (line.startsWith('Stop with')) break
  }
  child.stdout.resume()
  const end = async () => {
    child.kill('SIGTERM')
    if (child.exitCode === null) await once(child, 'exit')
    rmSync(directory, { recursive: true })
  }
  return { child, end }
}
