// Traffic for the dashboard of a real broker: an edge client whose bulk waits on a slow link, and a small fleet.

import { spawn } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

const BINARY = process.env.PEERS_BINARY
const PORTS = { tcp: process.env.PEERS_PACED_TCP, ws: process.env.PEERS_PACED_WS, quic: process.env.PEERS_PACED_QUIC }
/** Page of the broker with the slow link. */
export const URL_OF_BROKER = process.env.PEERS_DASHBOARD ?? `http://127.0.0.1:${process.env.PEERS_PACED_HTTP}/`

/** Client with an urgent stream and one of bulk, on one QUIC connection. */
export const EDGE = 'edge-1'
export const FLEET = 25
/** Topics that the edge client subscribes to: stream, priority, interval, payload. The link takes less than all of them. */
const URGENT = { topic: 'plant/hamburg/alarms/line-1', stream: 1, priority: 200, interval_ms: 100, data: '10' }
const BULK = { topic: 'plant/hamburg/video', stream: 2, priority: 8, interval_ms: 250, data: '%p30' }
/** The same for pictures. */
export const FOUR_LINES = [
  URGENT, { topic: 'plant/hamburg/telemetry', stream: 2, priority: 100, interval_ms: 50, data: '%p1' },
  { topic: 'plant/hamburg/video', stream: 3, priority: 50, interval_ms: 250, data: '%p15' }, { topic: 'firmware/edge', stream: 4, priority: 8, interval_ms: 500, data: '%p30' },
]

/** Processes of `braidmq` that are ended with the case. */
export class Traffic {
  #processes = []
  #directory = mkdtempSync(join(tmpdir(), 'braidmq-traffic-'))

  /** A `braidmq` with these arguments, on `tcp`, `ws` or `quic`. */
  run(transport, command, ...more) {
    const child = spawn(BINARY, [...command.split(' '), ...(transport === 'tcp' ? [] : [`--${transport}`]), '-h', '127.0.0.1', '-p', PORTS[transport], ...more], { stdio: 'ignore' })
    this.#processes.push(child)
    return child
  }

  /** The edge client, and a client that publishes to it. */
  edge(lines = [URGENT, BULK]) {
    const filters = lines.flatMap(({ topic, stream, priority }) => ['-t', topic.replace('line-1', '#'), '--stream', String(stream), '--priority', String(priority)])
    this.run('quic', 'bench sub', '-c', '1', '-q', '1', '--prefix', 'edge-', '--shortids', '--plain', '--quiet', ...filters)
    const topics = lines.map(({ topic, stream, priority, interval_ms, data }) => ({
      name: topic, interval_ms: String(interval_ms), QoS: 1, inject_timestamp: 'us', payload_encoding: 'eterm', payload: { Data: data }, render: 'Data', stream, stream_priority: priority,
    }))
    const file = join(this.#directory, 'lines.json')
    writeFileSync(file, JSON.stringify({ topics }))
    this.run('quic', 'bench pub', '-c', '1', '--prefix', 'line-', '--topics-payload', file, '-F', '1000', '-k', '60', '--shortids', '--plain', '--quiet')
  }

  /** Clients over TCP that publish a retained message each second. */
  fleet() {
    this.run('tcp', 'bench pub', '-c', String(FLEET), '-R', '1000', '--prefix', 'meter-', '-t', 'plant/lyon/telemetry/%i', '-I', '1000', '-q', '1', '--retain', '-m', '{"temperature_c":21.5}', '--shortids', '--plain', '--quiet')
  }

  async end() {
    for (const child of this.#processes) child.kill('SIGKILL')
    await Promise.all(this.#processes.map((child) => child.exitCode ?? child.signalCode ?? new Promise((done) => child.once('exit', done))))
    rmSync(this.#directory, { recursive: true })
  }
}
