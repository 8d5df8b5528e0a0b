// Mock of the broker's HTTP listener: the dashboard's files, the REST contract with moving data, events, MQTT.
// Alone: node peers/dashboard/mock.mjs [PORT]

import { createServer } from 'node:http'
import { readFile } from 'node:fs/promises'
import { extname, join, normalize } from 'node:path'
import { fileURLToPath } from 'node:url'

import { MqttServer } from './mock_mqtt.mjs'
import { World } from './world.mjs'

export const ASSETS = fileURLToPath(new URL('../../crates/braid-http/assets/dashboard/', import.meta.url))
const TYPES = { '.html': 'text/html; charset=utf-8', '.js': 'text/javascript; charset=utf-8', '.css': 'text/css; charset=utf-8', '.svg': 'image/svg+xml' }
/** What the broker has to send with the dashboard; docs/dashboard.md has the same line. */
export const CSP = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
const BODY_LIMIT = 1 << 20

/** An answer that is not a success. */
class Refusal extends Error {
  constructor(status, title, detail) {
    super(detail)
    Object.assign(this, { status, title })
  }
}

/** First page of a list. */
const list = (items, url) => {
  const limit = Number(url.searchParams.get('limit') ?? 100)
  return { items: items.slice(0, limit), cursor: items.length > limit ? 'more' : null, total: items.length }
}
const notFound = (detail) => new Refusal(404, 'Not Found', detail)

/** The mock; `user` and `password` are wanted if they are given, `isViewer` refuses changes. */
export class Mock {
  #server
  #sockets = new Set()
  #streams = new Set()
  requests = []
  user = null
  password = null
  isViewer = false

  static async start({ port = 0, clients = 10_000 } = {}) {
    const mock = new Mock()
    mock.world = new World(clients)
    mock.mqtt = new MqttServer((kind, data) => mock.world.tell(kind, data))
    mock.#server = createServer((request, response) => mock.#answer(request, response))
    mock.#server.on('connection', (socket) => {
      mock.#sockets.add(socket)
      socket.on('close', () => mock.#sockets.delete(socket))
    })
    mock.#server.on('upgrade', (request, socket) => mock.mqtt.accept(request, socket))
    await new Promise((done) => mock.#server.listen(port, '127.0.0.1', done))
    mock.url = `http://127.0.0.1:${mock.#server.address().port}/`
    return mock
  }

  async close() {
    this.world.stop()
    this.mqtt.close()
    for (const socket of this.#sockets) socket.destroy()
    await new Promise((done) => this.#server.close(done))
  }

  /** Ends every event stream, as a restart of the broker does. */
  cutStreams() {
    for (const response of this.#streams) response.destroy()
  }

  async #answer(request, response) {
    const url = new URL(request.url, 'http://mock')
    try {
      if (url.pathname.startsWith('/api/v1/')) {
        this.requests.push(`${request.method} ${url.pathname.slice(8)}${url.search}`)
        await this.#api(request, response, url)
      } else await file(response, url.pathname)
    } catch (error) {
      if (response.headersSent) return response.destroy()
      const status = error.status ?? 500
      const headers = { 'content-type': 'application/problem+json' }
      if (status === 401) headers['www-authenticate'] = 'Basic realm="braidmq"'
      response.writeHead(status, headers)
      response.end(JSON.stringify({ type: 'about:blank', title: error.title ?? 'Internal Server Error', status, detail: error.message }))
    }
  }

  async #api(request, response, url) {
    if (this.user) {
      const wanted = `Basic ${Buffer.from(`${this.user}:${this.password}`).toString('base64')}`
      if (request.headers.authorization !== wanted) throw new Refusal(401, 'Unauthorized', 'No valid credentials')
    }
    if (this.isViewer && request.method !== 'GET') throw new Refusal(403, 'Forbidden', 'The role viewer may only read')
    const parts = url.pathname.slice(8).split('/').map(decodeURIComponent)
    const { world } = this
    const key = `${request.method} ${parts[0]}`
    const body = request.method === 'POST' || request.method === 'PUT' ? await readJson(request) : null
    const found = {
      'GET overview': () => world.overview(),
      'GET clients': () => this.#clients(request, response, url, parts),
      'DELETE clients': () => this.mqtt.disconnect(parts[1]) || world.disconnect(parts[1], url.searchParams.get('session') === 'true', url.searchParams.get('mountpoint')) || notFound(`No client ${parts[1]}`),
      'GET topics': () => world.topics(url.searchParams.get('prefix') ?? ''),
      'GET retained': () => world.retained(parts[1]) ?? notFound(`Nothing is retained for ${parts[1]}`),
      'DELETE retained': () => world.deleteRetained(parts[1]) || notFound(`Nothing is retained for ${parts[1]}`),
      'GET bans': () => list(world.bans, url),
      'POST bans': () => world.ban(body),
      'DELETE bans': () => world.lift(Object.fromEntries(url.searchParams)) || notFound('There is no such ban'),
      'GET listeners': () => list(world.listeners(), url),
      'GET config': () => world.config(),
      'POST reload': () => {
        if (world.brokenFile) throw new Refusal(422, 'Unprocessable Content', world.brokenFile)
        return { reloaded: ['certificates', 'rules'] }
      },
      'GET autoquic': () => (parts[1] === 'networks' ? list(world.networks(), url) : world.autoquic()),
      'GET events': () => this.#events(response, url),
    }[key]
    if (!found) throw notFound(`No route ${request.method} ${url.pathname}`)
    const result = found()
    if (result instanceof Error) throw result
    if (result === undefined) return
    if (result === true) return response.writeHead(204).end()
    response.writeHead(200, { 'content-type': 'application/json' })
    response.end(JSON.stringify(result))
  }

  #clients(request, response, url, parts) {
    const { world } = this
    if (parts.length === 1) return world.page(Object.fromEntries(url.searchParams))
    const client = world.client(parts[1], url.searchParams.get('mountpoint')) ?? this.mqtt.client(parts[1])
    if (!client) return notFound(`No client ${parts[1]}`)
    if (parts.length === 2) return world.detail(client)
    if (parts.length === 3) return world.streams(client)
    if (!client.connected) return new Refusal(409, 'Conflict', 'the client is not connected')
    this.#stream(response)
    const send = () => response.write(`event: streams\ndata: ${JSON.stringify(world.streams(client))}\n\n`)
    send()
    const timer = setInterval(send, Number(url.searchParams.get('interval_ms') ?? 1000))
    response.on('close', () => clearInterval(timer))
    return undefined
  }

  #events(response, url) {
    const kinds = url.searchParams.get('kinds')?.split(',')
    this.#stream(response)
    response.write(': begin\n\n')
    const stop = this.world.listen((kind, data) => {
      if (!kinds || kinds.includes(kind)) response.write(`event: ${kind}\ndata: ${JSON.stringify(data)}\n\n`)
    })
    response.on('close', stop)
    return undefined
  }

  #stream(response) {
    response.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-store' })
    this.#streams.add(response)
    response.on('close', () => this.#streams.delete(response))
  }

  /** Number of event streams that are open. */
  get openStreams() {
    return this.#streams.size
  }
}

async function readJson(request) {
  const chunks = []
  let size = 0
  for await (const chunk of request) {
    size += chunk.length
    if (size > BODY_LIMIT) throw new Refusal(413, 'Content Too Large', 'The body has more than 1 MiB')
    chunks.push(chunk)
  }
  try {
    return chunks.length ? JSON.parse(Buffer.concat(chunks).toString()) : {}
  } catch {
    throw new Refusal(400, 'Bad Request', 'The body is no JSON')
  }
}

async function file(response, pathname) {
  const name = normalize(pathname === '/' ? '/index.html' : pathname)
  const data = await readFile(join(ASSETS, name)).catch(() => { throw notFound(`No file ${pathname}`) })
  response.writeHead(200, {
    'content-type': TYPES[extname(name)] ?? 'application/octet-stream',
    'content-security-policy': CSP,
    'x-content-type-options': 'nosniff',
    'referrer-policy': 'no-referrer',
    'cache-control': 'no-cache',
  })
  response.end(data)
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const mock = await Mock.start({ port: Number(process.argv[2] ?? 18083) })
  console.log(mock.url)
}
