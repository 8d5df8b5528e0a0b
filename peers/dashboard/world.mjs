// Moving data of the mock: 10,000 clients, streams with traffic and backlog, topics, events.

const TICK = 250
const TRANSPORTS = ['tcp', 'tls', 'ws', 'wss', 'quic']
const KINDS = ['sensor', 'meter', 'gateway', 'camera', 'valve', 'robot']
const NAMES = ['telemetry', 'alarms', 'firmware', 'state', 'video']
/** The client that the tests and the pictures look at. */
export const EDGE = 'edge-hamburg-07'

/** Numbers from 0 to 1 that are the same in every run. */
function generator(seed) {
  let state = seed
  return () => {
    state = (state * 1664525 + 1013904223) % 4294967296
    return state / 4294967296
  }
}

export class World {
  #random = generator(19)
  #listeners = new Set()
  #timer
  #ticks = 0
  /** Set by tests: status and reasons of the overview, a backlog of a stream in bytes, the error of a reload. */
  status = 'serving'
  reasons = []
  held = new Map()
  brokenFile = null
  /** The broker counts the clients of a query. */
  isCounted = true
  bans = [
    { client: 'scanner-3', reason: 'Opens 50 connections a second', expires_at: Date.now() / 1000 + 5400 },
    { addresses: '203.0.113.0/24', reason: null, expires_at: null },
  ]
  #retained = new Map()

  constructor(clients) {
    this.begun = Date.now() / 1000 - 356_000
    this.clients = Array.from({ length: clients - 1 }, (_, index) => this.#makeClient(index))
    this.clients.push({ ...this.#makeClient(clients), client_id: EDGE, transport: 'quic', version: '5.0', connected: true, connected_at: Date.now() / 1000 - 5025, disconnected_at: null, user: 'edge', address: '198.51.100.23:49152', subscriptions: 4, queued_messages: 1850, queued_bytes: 4_300_000, streams: 6, index: -2 })
    this.clients.sort((left, right) => (left.client_id < right.client_id ? -1 : 1))
    this.edge = [
      { stream: 0, kind: 'control', direction: 'both', priority: 65535, rate_out: 180, rate_in: 240 },
      { stream: 8, kind: 'data', direction: 'both', priority: 200, rate_out: 9_000, rate_in: 1_200 },
      { stream: 4, kind: 'data', direction: 'both', priority: 100, rate_out: 64_000, rate_in: 18_000, waits_for: 'receive_maximum', behind: null, backlog: 48_000 },
      { stream: 12, kind: 'data', direction: 'in', priority: 100, rate_out: 0, rate_in: 30_000 },
      { stream: 16, kind: 'data', direction: 'out', priority: 50, rate_out: 130_000, rate_in: 0, waits_for: 'lane', behind: 4, backlog: 760_000 },
      { stream: 20, kind: 'data', direction: 'out', priority: 8, rate_out: 420_000, rate_in: 0, waits_for: 'gate', behind: 8, backlog: 3_400_000 },
    ].map((one) => ({ backlog: 0, waits_for: null, behind: null, bytes_in: 0, bytes_out: 0, ...one }))
    for (const kind of ['hamburg', 'lyon', 'porto']) this.#retained.set(`plant/${kind}/state/line-1`, JSON.stringify({ line: 1, running: true, speed_rpm: 1480, operator: null }))
    this.#timer = setInterval(() => this.#tick(), TICK)
  }

  stop() {
    clearInterval(this.#timer)
  }

  #makeClient(index) {
    const random = this.#random
    const connected = random() < 0.93
    const at = Date.now() / 1000 - random() * 200_000
    const transport = TRANSPORTS[Math.floor(random() ** 1.4 * 5)]
    const queued = !connected || random() < 0.04 ? Math.floor(random() ** 3 * 900) : 0
    return {
      client_id: `${KINDS[index % KINDS.length]}-${String(index).padStart(5, '0')}`, mountpoint: null, user: ['fleet', 'plant', 'edge', null][Math.floor(random() * 4)],
      address: connected ? `10.${index % 7}.${Math.floor(index / 250) % 250}.${index % 250}:${40000 + (index % 20000)}` : null,
      transport: connected ? transport : null, version: connected ? ['5.0', '5.0', '3.1.1', '3.1'][Math.floor(random() ** 2 * 4)] : null,
      connected, connected_at: connected ? at : null, disconnected_at: connected ? null : at, clean_start: random() < 0.5, expiry_secs: 86400, keep_alive_secs: 60,
      subscriptions: 1 + Math.floor(random() * 4), queued_messages: queued, queued_bytes: queued * 310, inflight: Math.min(queued, 20), dropped: random() < 0.02 ? Math.floor(random() * 50) : 0,
      streams: connected ? (transport === 'quic' ? 1 + Math.floor(random() * 5) : 1) : 0, index,
    }
  }

  #tick() {
    this.#ticks += 1
    for (const one of this.edge) {
      const wave = 1 + 0.5 * Math.sin(this.#ticks / 9 + one.stream)
      one.bytes_out += Math.round(one.rate_out * wave * TICK / 1000)
      one.bytes_in += Math.round(one.rate_in * wave * TICK / 1000)
    }
    if (this.#ticks % 6 === 0) this.#randomEvent()
  }

  #randomEvent() {
    const client = this.clients[Math.floor(Math.random() * this.clients.length)]
    const kind = ['connected', 'disconnected', 'connected', 'moved', 'refused', 'subscribed', 'expired', 'decision'][this.#ticks / 6 % 8]
    const base = { at: Date.now() / 1000, client_id: client.client_id, user: client.user, address: client.address, transport: client.transport }
    const more = {
      disconnected: { cause: 'keep alive timeout' }, refused: { cause: 'bad user name or password' }, moved: { from: '10.2.0.4:40112' },
      subscribed: { filter: 'plant/+/alarms/#' }, decision: { client_id: null, user: null, transport: null, cause: 'QUIC is faster by 34 %', network: '198.51.100.0/24' },
    }[kind]
    this.tell(kind, { ...base, ...more })
  }

  listen(listener) {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  tell(kind, data) {
    for (const listener of this.#listeners) listener(kind, data)
  }

  overview() {
    const seconds = Date.now() / 1000
    const wave = (period, depth) => 1 + depth * Math.sin((seconds * 2 * Math.PI) / period) + (Math.random() - 0.5) * depth * 0.5
    const byTransport = Object.fromEntries(TRANSPORTS.map((name) => [name, this.clients.filter((one) => one.transport === name).length]))
    return {
      version: '0.3.0', uptime_secs: seconds - this.begun, status: this.status, reasons: this.reasons,
      rates: { messages_in_per_sec: 4200 * wave(60, 0.2), messages_out_per_sec: 11800 * wave(75, 0.25), bytes_in_per_sec: 1.3e6 * wave(60, 0.2), bytes_out_per_sec: 4.1e6 * wave(75, 0.25), connects_per_sec: 14 * wave(31, 0.5), refusals_per_sec: Math.max(0, 2 * wave(20, 1.2) - 1) },
      totals: { messages_in: Math.round((seconds - this.begun) * 4200), messages_out: Math.round((seconds - this.begun) * 11800), bytes_in: Math.round((seconds - this.begun) * 1.3e6), bytes_out: Math.round((seconds - this.begun) * 4.1e6), dropped: 1204, refused: 8831 },
      connections: { ...byTransport, total: Object.values(byTransport).reduce((sum, one) => sum + one, 0) },
      sessions: this.clients.length, subscriptions: 24_310, retained: { count: this.#retained.size, bytes: 52_000 },
      memory: { used_bytes: Math.round(412e6 * wave(90, 0.05)), resting_bytes: 96e6, low_bytes: 640e6, high_bytes: 800e6 },
      store: { state: 'ok', bytes: 1.9e9 }, spool: { state: 'ok', bytes: 210e6 }, quic: { state: 'ok', handshakes: 48_211 },
    }
  }

  page({ prefix = '', user, transport, connected, limit = '100', cursor }) {
    const found = this.clients.filter((one) => one.client_id.startsWith(prefix) && (!user || one.user === user) && (!transport || one.transport === transport) && (!connected || String(one.connected) === connected))
    const start = cursor ? found.findIndex((one) => one.client_id > cursor) : 0
    const items = start < 0 ? [] : found.slice(start, start + Number(limit))
    return { items: items.map(({ index, ...one }) => one), cursor: start >= 0 && start + items.length < found.length ? items.at(-1).client_id : null, total: this.isCounted ? found.length : null }
  }

  client(id, mountpoint = null) {
    return this.clients.find((one) => one.client_id === id && one.mountpoint === mountpoint)
  }

  detail({ index, filters: own, ...one }) {
    const isEdge = one.client_id === EDGE
    const filters = isEdge ? ['plant/hamburg/alarms/#', 'plant/hamburg/telemetry/+', 'firmware/edge/#', '$share/fleet/jobs/#'] : (own ?? ['plant/+/state'])
    return {
      ...one, will: isEdge ? { topic: 'plant/hamburg/edge-07/offline', qos: 1, retain: true, delay_secs: 30 } : null,
      filters: filters.slice(0, one.subscriptions).map((filter, at) => ({ filter, qos: at % 3, no_local: at === 1, retain_as_published: at === 0, retain_handling: at % 3, identifier: at === 2 ? 7 : null })),
    }
  }

  streams({ client_id, connected, transport, index, address }) {
    const at = Date.now() / 1000
    if (!connected) return { client_id, at, path: null, paths: [], gate: null, streams: [] }
    const isQuic = transport === 'quic'
    const wave = Math.sin(at / 4)
    const one = (given) => {
      const backlog = this.held.get(given.stream) ?? Math.round(given.backlog * (1 + 0.25 * Math.sin(at / 7 + given.stream)))
      return { stream: given.stream, kind: given.kind, direction: given.direction, priority: given.priority, bytes_in: given.bytes_in, bytes_out: given.bytes_out, messages_in: Math.round(given.bytes_in / 310), messages_out: Math.round(given.bytes_out / 310),
        backlog_messages: Math.ceil(backlog / 2300), backlog_bytes: backlog, oldest_ms: backlog ? Math.round((backlog / (given.rate_out + 1)) * 1000) : null, unsent_bytes: given.kind === 'control' ? 0 : 2048, waits_for: given.waits_for, behind: given.behind }
    }
    const onePath = (number, state, address, rtt_ms) => ({ number, state, address, rtt_ms, lost_packets: 12, sent_packets: 31_022, sent_bytes: 4_200_000, received_bytes: 810_000, cwnd_bytes: 64_000 })
    const plain = () => {
      const bytes = Math.round((at - this.begun) * (40 + (index % 30) * 20))
      return [{ stream: 0, kind: 'control', direction: 'both', priority: 65535, rate_out: 500, bytes_in: bytes, bytes_out: bytes * 2, backlog: 0, waits_for: null, behind: null }]
    }
    return {
      client_id, at,
      path: { rtt_ms: 38 + 6 * wave, loss_ratio: 0.0042, lost_packets: 1312, sent_packets: 310_220, cwnd_bytes: 240_000 + Math.round(40_000 * wave), mtu_bytes: 1452, address, moves: isQuic ? 2 : 0 },
      paths: client_id === EDGE ? [onePath(0, 'in_use', address, 38), onePath(1, 'standby', '203.0.113.9:50123', 64)] : [],
      gate: isQuic ? { state: 'holding', rate_per_sec: 1_310_000, queue_ms: 3.1, class: 'policed at 10 Mbit/s' } : null,
      streams: client_id === EDGE ? this.edge.map(one) : plain().map(one),
    }
  }

  disconnect(id, withSession, mountpoint) {
    const found = this.client(id, mountpoint)
    if (!found) return false
    if (withSession) this.clients.splice(this.clients.indexOf(found), 1)
    else Object.assign(found, { connected: false, transport: null, address: null, disconnected_at: Date.now() / 1000, connected_at: null, streams: 0 })
    this.tell('disconnected', { at: Date.now() / 1000, client_id: id, cause: 'ended by an operator' })
    return true
  }

  topics(prefix) {
    const depth = prefix === '' ? 0 : prefix.split('/').length
    const names = [['plant', 'firmware', 'jobs'], ['hamburg', 'lyon', 'porto'], NAMES, Array.from({ length: depth === 3 && prefix.endsWith('telemetry') ? 700 : 6 }, (_, at) => `line-${at + 1}`)][depth] ?? []
    const at = Date.now() / 1000 - 3
    return { truncated: false, since: this.begun, missed: 12, levels: names.map((name) => {
      const isLeaf = depth === 3
      const topic = prefix === '' ? name : `${prefix}/${name}`
      const text = prefix.endsWith('video') ? null : JSON.stringify({ line: name, temperature_c: 21.4, at })
      return { name, topic, retained: isLeaf && this.#retained.has(topic) ? 1 : 0, messages: isLeaf ? Math.round((at - this.begun) / 5) : 0, children: isLeaf ? 0 : 6, last: isLeaf ? { size_bytes: prefix.endsWith('alarms') ? 5000 : text?.length ?? 58, qos: 1, at, text } : null }
    }) }
  }

  retained(topic) {
    const text = this.#retained.get(topic)
    return text === undefined ? null : { topic, qos: 1, size_bytes: text.length, age_secs: 300, expires_secs: null, publisher: EDGE, payload: Buffer.from(text).toString('base64'), payload_text: text }
  }

  deleteRetained(topic) {
    return this.#retained.delete(topic)
  }

  ban({ secs, reason = null, ...target }) {
    const ban = { ...target, reason, expires_at: secs ? Date.now() / 1000 + secs : null }
    this.bans.push(ban)
    return ban
  }

  lift(target) {
    const at = this.bans.findIndex((ban) => ['client', 'mountpoint', 'user', 'addresses'].every((name) => (ban[name] ?? undefined) === target[name]))
    if (at >= 0) this.bans.splice(at, 1)
    return at >= 0
  }

  listeners() {
    return [['tcp', 1883], ['tls', 8883], ['ws', 8083], ['wss', 8084], ['quic', 14567], ['ws', null]].map(([transport, port]) => ({ name: transport, transport, address: port && `0.0.0.0:${port}`, connections: this.clients.filter((one) => one.transport === transport).length, available: transport !== 'wss', restarts: transport === 'wss' ? 3 : 0 }))
  }

  config() {
    return { data_dir: '/var/lib/braidmq', listeners: { tcp: ['0.0.0.0:1883'], quic: ['0.0.0.0:14567'] }, limits: { connections: 100_000, queued_messages: 100_000, streams: 256, urgent_bytes_per_second: 262_144 }, quic: { congestion: 'bbr3', early_publish: 'hold' }, auth: { password_file: '/etc/braidmq/users', token_secret: '***' } }
  }

  networks() {
    const path = (rtt, loss) => (rtt === null ? null : { rtt_ms: rtt, loss_ratio: loss, bytes_per_sec: null, age_secs: 2 })
    const row = (network, chosen, tcp, quic, costs, changed) => ({ network, listener: '0.0.0.0:18083', chosen, changed_secs: changed, dwell_secs: null, flaps: 0, failures: 0, broken_secs: null, tcp: path(tcp, 0.021), quic: path(quic, 0.019), cost_tcp_ms: costs[0], cost_quic_ms: costs[1], text: '' })
    return [row('198.51.100.0/24', 'quic', 84, 81, [412, 271], 4000), row('10.0.0.0/24', 'tcp', 0.4, null, [3.1, 4.4], null), row('2001:db8:7::/48', 'tcp', 31, 140, [97, 388], 130)]
  }

  autoquic() {
    const change = (network, from, to, text) => ({ at: Date.now() / 1000 - 4000, network, listener: '0.0.0.0:18083', from, to, reason: 'quic_costs_less', text })
    return {
      mode: 'auto',
      known: 3,
      changes: [change('2001:db8:7::/48', 'quic', 'tcp', 'QUIC costs more: QUIC 388.0 ms, TCP 97.0 ms for 30 s'), change('198.51.100.0/24', 'tcp', 'quic', 'QUIC costs less: QUIC 271.0 ms, TCP 412.0 ms for 5 s')],
    }
  }
}
