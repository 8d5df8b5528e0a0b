// What 10,000 clients cost the API and the dashboard: PEERS_BINARY=target/release/braidmq PEERS_NODE_MODULES=.peers/node_modules
// node peers/dashboard/many_clients.mjs [SECONDS] prints a report. The broker must be a release build.

import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, readdirSync, rmSync } from 'node:fs'
import { Agent, request } from 'node:http'
import { cpus, loadavg, tmpdir } from 'node:os'
import { join } from 'node:path'

import { serve } from './serve.mjs'

const SECONDS = Number(process.argv[2] ?? 60)
const CLIENTS = 10_000
const SCRAPES = 50
const ROUNDS = 12
const ROUND_SECONDS = 3
const FRAMES = 300

const broker = await serve('limits.connections=20000')
// They read the ports of the broker.
const { Traffic, URL_OF_BROKER, EDGE } = await import('./traffic.mjs')
const { Stage, close, launch } = await import('./stage.mjs')

const directory = mkdtempSync(join(tmpdir(), 'braidmq-many-'))
const sleep = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000))
const number = (value, digits = 2) => value.toFixed(digits)
const quantile = (values, part) => values.toSorted((left, right) => left - right)[Math.min(values.length - 1, Math.floor(values.length * part))]
const say = (line = '') => console.log(line)

/** CPU time of the threads of the broker in seconds: those of HTTP, and all. */
function cpu() {
  let [http, all] = [0, 0]
  for (const thread of readdirSync(`/proc/${broker.child.pid}/task`)) {
    const path = `/proc/${broker.child.pid}/task/${thread}`
    const used = Number(readFileSync(`${path}/schedstat`, 'utf8').split(' ')[0]) / 1e9
    all += used
    if (readFileSync(`${path}/comm`, 'utf8').trim() === 'http') http += used
  }
  return { http, all }
}

/** CPU time of the broker during `seconds`. */
async function measure(seconds) {
  const before = cpu()
  await sleep(seconds)
  const after = cpu()
  return { http: after.http - before.http, all: after.all - before.all }
}

const agent = new Agent({ keepAlive: true, maxSockets: 1 })

/** GET; body, and time in milliseconds until its end. */
function ask(path) {
  const began = performance.now()
  return new Promise((done, fail) => {
    request(new URL(path, URL_OF_BROKER), { agent }, (response) => {
      const parts = []
      response.on('data', (part) => parts.push(part))
      response.on('end', () => done({ status: response.statusCode, body: Buffer.concat(parts).toString(), ms: performance.now() - began }))
    }).on('error', fail).end()
  })
}

async function connected(wanted) {
  for (;;) {
    const { connections } = JSON.parse((await ask('api/v1/overview')).body)
    if (connections.total >= wanted) return
    await sleep(0.2)
  }
}

/** Latency of messages of QoS 1 from when they are due to their PUBACK: p50 and p99 in microseconds. */
async function latency(name) {
  const file = join(directory, `${name}.json`)
  const child = spawn(process.env.PEERS_BINARY, ['bench', 'pub', '-h', '127.0.0.1', '-p', process.env.PEERS_PACED_TCP, '-c', '20', '-R', '1000', '-I', '10', '-t', 'ping/%i', '-q', '1', '-s', '64', '--duration', `${ROUND_SECONDS}s`, '--plain', '--quiet', '--json', file], { stdio: 'ignore' })
  await once(child, 'exit')
  return JSON.parse(readFileSync(file, 'utf8'))
}

// === Clients ===

const traffic = new Traffic()
traffic.run('tcp', 'bench conn', '-c', String(CLIENTS), '-R', '2000', '-k', '3600', '--prefix', 'fleet-', '--shortids', '--plain', '--quiet')
await connected(CLIENTS)
await sleep(5)
say(`${CLIENTS} clients over TCP; ${cpus().length} x ${cpus()[0].model}, load ${loadavg()[0].toFixed(1)}, ${new Date().toISOString()}`)

// === /metrics ===

await ask('metrics')
const scrapes = []
const before = cpu().all
for (let at = 0; at < SCRAPES; at += 1) scrapes.push(await ask('metrics'))
const each = ((cpu().all - before) / SCRAPES) * 1000
const times = scrapes.map(({ ms }) => ms)
say(`/metrics, ${SCRAPES} calls, ${scrapes[0].body.length} bytes: p50 ${number(quantile(times, 0.5))} ms, p99 ${number(quantile(times, 0.99))} ms, longest ${number(Math.max(...times))} ms (bar: 20); CPU time of the broker ${number(each)} ms each`)

// === Messages beside /metrics ===

const rounds = { quiet: [], scraped: [] }
for (let round = 0; round < ROUNDS; round += 1) {
  // In turn, so that what else the machine does hits both.
  for (const kind of round % 2 ? ['scraped', 'quiet'] : ['quiet', 'scraped']) {
    const timer = kind === 'scraped' ? setInterval(() => ask('metrics'), 100) : null
    rounds[kind].push(await latency(`${kind}-${round}`))
    clearInterval(timer)
  }
}
for (const part of ['p50', 'p99']) {
  const [quiet, scraped] = ['quiet', 'scraped'].map((kind) => quantile(rounds[kind].map(({ topics: [one] }) => one.latency_us[part]), 0.5))
  say(`message to PUBACK, ${part}: ${number(quiet, 0)} us, with a scrape each 100 ms ${number(scraped, 0)} us, ratio ${number(scraped / quiet)}`)
}

// === Dashboard ===

const stage = new Stage()
await stage.begin(null)
const { page } = stage

/** Tasks of the page's main thread while `action` runs: duration and CPU time in milliseconds. */
async function tasks(action) {
  const browser = await launch()
  await browser.startTracing(page, { categories: ['toplevel', 'disabled-by-default-devtools.timeline'] })
  const result = await action()
  const { traceEvents } = JSON.parse((await browser.stopTracing()).toString())
  const key = ({ pid, tid }) => `${pid} ${tid}`
  const main = new Set(traceEvents.filter(({ name, args }) => name === 'thread_name' && args.name === 'CrRendererMain').map(key))
  const found = traceEvents.filter((event) => /RunTask$/.test(event.name) && event.dur && main.has(key(event)))
  const [wall, used] = [found.map(({ dur }) => dur / 1000), found.map(({ tdur }) => (tdur ?? 0) / 1000)]
  const long = (list) => `${list.filter((one) => one > 50).length} above 50 ms, the longest ${number(Math.max(...list), 1)} ms`
  return { result, text: `${found.length} tasks; by the clock ${long(wall)}; by CPU time ${long(used)}` }
}

const scroll = () => page.evaluate((count) => new Promise((done) => {
  const list = document.querySelector('.vlist')
  const seen = []
  let before = performance.now()
  const step = (now) => {
    seen.push(now - before)
    before = now
    list.scrollTop = (seen.length / count) * list.scrollHeight
    if (seen.length < count) requestAnimationFrame(step)
    else done(seen.slice(1))
  }
  requestAnimationFrame(step)
}), FRAMES)

const opened = await tasks(async () => {
  await stage.visit('clients', 'Clients')
  await stage.text('.view-head', '10,000 clients')
})
say(`dashboard opens the list: ${opened.text}`)
for (const label of ['while its pages are loaded', 'again']) {
  const { result: frames, text } = await tasks(scroll)
  say(`${CLIENTS} clients scrolled in ${FRAMES} frames, ${label}: ${text}; frames p50 ${number(quantile(frames, 0.5), 1)} ms, p99 ${number(quantile(frames, 0.99), 1)} ms, longest ${number(Math.max(...frames), 1)} ms`)
}

// === CPU time of the broker ===

/** Measures views between two times without one, and says what each adds. */
async function compare(views) {
  await page.goto('about:blank')
  await sleep(3)
  const rest = [await measure(SECONDS)]
  const measured = []
  for (const [name, hash, prepare] of views) {
    await stage.visit(hash)
    await page.evaluate(prepare ?? (() => {}))
    await sleep(3)
    measured.push([name, await measure(SECONDS)])
    await page.goto('about:blank')
    await sleep(3)
  }
  rest.push(await measure(SECONDS))
  const idle = (rest[0].all + rest[1].all) / 2
  const percent = (seconds) => `${number((seconds / SECONDS) * 100)} % of a core`
  say(`CPU of the broker in ${SECONDS} s without a view: ${rest.map(({ all }) => number(all, 3)).join(' s and ')} s, of these threads of HTTP ${rest.map(({ http }) => number(http, 4)).join(' s and ')} s`)
  for (const [name, { all, http }] of measured) say(`${name}: ${number(all, 3)} s, ${percent(all - idle)} more; threads of HTTP ${number(http, 3)} s, ${percent(http)}`)
}

const middle = () => {
  const list = document.querySelector('.vlist')
  list.scrollTop = list.scrollHeight / 2
}
await compare([['overview, once a second', ''], ['clients, the middle of the list, each 5 s', 'clients', middle]])
traffic.edge()
await sleep(3)
await compare([['lanes of a QUIC connection, once a second', `clients/${EDGE}`]])

stage.tolerated = [/404/]
await stage.end(true)
await close()
await traffic.end()
agent.destroy()
rmSync(directory, { recursive: true })
await broker.end()
