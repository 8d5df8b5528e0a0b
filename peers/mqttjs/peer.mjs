// MQTT.js with its events turned into queues that a case waits on.

import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'

import { bounded, expect } from './suite.mjs'

// Installed outside the source tree, so the module is named by its directory.
const mqtt = createRequire(`${process.env.PEERS_NODE_MODULES}/`)('mqtt')

const HOST = '127.0.0.1'
const SCHEMES = { tcp: 'mqtt', tls: 'mqtts', ws: 'ws', wss: 'wss' }
const PROTOCOLS = {
  'v3.1': { protocolId: 'MQIsdp', protocolVersion: 3 },
  'v3.1.1': { protocolId: 'MQTT', protocolVersion: 4 },
  v5: { protocolId: 'MQTT', protocolVersion: 5 },
}

/** Items that arrive before or after somebody asks for them. */
class Arrivals {
  #items = []
  #waiting = []

  push(item) {
    const first = this.#waiting.shift()
    if (first) first(item)
    else this.#items.push(item)
  }

  next(what) {
    const item = this.#items.length ? Promise.resolve(this.#items.shift()) : new Promise((done) => this.#waiting.push(done))
    return bounded(item, what)
  }
}

/** The next messages of clients together; those that are waited for in vain are lost to later calls. */
export async function messagesOf(peers, count) {
  const found = []
  const next = (peer) => peer.message('message of a group').then((message) => ({ peer, message }))
  const pending = new Map(peers.map((peer) => [peer, next(peer)]))
  while (found.length < count) {
    const { peer, message } = await Promise.race(pending.values())
    found.push(message)
    pending.set(peer, next(peer))
  }
  for (const one of pending.values()) one.catch(() => {})
  return found
}

/** One MQTT.js client that never reconnects by itself. */
export class Peer {
  #client
  #messages = new Arrivals()
  #connacks = new Arrivals()
  #disconnects = new Arrivals()
  #ends = new Arrivals()

  constructor(transport, version, clientId, options = {}) {
    const path = transport.startsWith('ws') ? '/mqtt' : ''
    const url = `${SCHEMES[transport]}://${HOST}:${process.env[`PEERS_${transport.toUpperCase()}`]}${path}`
    this.#client = mqtt.connect(url, {
      ...PROTOCOLS[version],
      ca: readFileSync(process.env.PEERS_CA),
      clientId,
      reconnectPeriod: 0,
      ...options,
    })
    this.#client.on('message', (topic, payload, packet) => this.#messages.push({ topic, payload, packet }))
    this.#client.on('connect', (connack) => this.#connacks.push(connack))
    this.#client.on('disconnect', (packet) => this.#disconnects.push(packet.reasonCode))
    this.#client.on('close', () => this.#ends.push(null))
    // What went wrong shows as an answer that does not come, or as a rejected promise.
    this.#client.on('error', (error) => this.#connacks.push(error))
  }

  /** The CONNACK, which must accept. */
  async connected() {
    const connack = await this.#connacks.next('CONNACK')
    if (connack instanceof Error) throw connack
    return connack
  }

  /** Subscribes to one filter; the granted QoS or reason code. */
  async subscribe(filter, qos, options = {}) {
    const granted = await bounded(this.#client.subscribeAsync(filter, { qos, ...options }), 'SUBACK')
    return granted.map((one) => one.qos)
  }

  /** Unsubscribes from one filter. */
  unsubscribe(filter) {
    return bounded(this.#client.unsubscribeAsync(filter), 'UNSUBACK')
  }

  /** Publishes, and waits until the broker has acknowledged. */
  publish(topic, payload, qos = 0, options = {}) {
    return bounded(this.#client.publishAsync(topic, payload, { qos, ...options }), `acknowledgement of QoS ${qos}`)
  }

  /** The next message. */
  message(what = 'message') {
    return this.#messages.next(what)
  }

  /** Every message that came before the first one on the topic, which is taken away too. */
  async until(topic) {
    const before = []
    for (;;) {
      const message = await this.message(`message on ${topic}`)
      if (message.topic === topic) return before
      before.push(message)
    }
  }

  /** The reason code of the broker's DISCONNECT. */
  dismissed() {
    return this.#disconnects.next('DISCONNECT')
  }

  /** Waits for the end of the connection. */
  ended() {
    return this.#ends.next('end of the connection')
  }

  /** DISCONNECT, and wait until the connection is gone. */
  async disconnect(options = {}) {
    await bounded(this.#client.endAsync(false, options), 'end after DISCONNECT')
  }

  /** Ends the connection under the library's feet: no DISCONNECT reaches the broker. */
  async cut() {
    this.#client.stream.destroy()
    await this.ended()
  }

  /** Ends whatever is left, at the end of a case. */
  async close() {
    await bounded(this.#client.endAsync(true), 'end of the client')
  }
}

/** What one case runs on: fresh topics, fresh client ids, and every client closed at the end. */
export class Stage {
  static #serial = 0
  #peers = []

  constructor(transport, version) {
    this.transport = transport
    this.version = version
    Stage.#serial += 1
    this.prefix = `j${process.pid}/${Stage.#serial}`
  }

  /** A topic of this case alone. */
  topic(leaf) {
    return `${this.prefix}/${leaf}`
  }

  /** A client that is on its way to connect. */
  peer(role, { transport = this.transport, version = this.version, ...options } = {}) {
    const made = new Peer(transport, version, `${this.prefix.replace('/', '-')}-${role}`, options)
    this.#peers.push(made)
    return made
  }

  /** A connected client. */
  async client(role, options = {}) {
    const made = this.peer(role, options)
    await made.connected()
    return made
  }

  /** Options of a Session that outlives its connection. */
  lasting(clean = false) {
    return { clean, ...(this.version === 'v5' ? { properties: { sessionExpiryInterval: 300 } } : {}) }
  }

  /** All messages on their way to a subscriber of topic "fence", proven complete by one more. */
  async fenced(publisher, subscriber, qos = 1) {
    await publisher.publish(this.topic('fence'), 'fence', qos)
    return subscriber.until(this.topic('fence'))
  }

  async close() {
    for (const peer of this.#peers) await peer.close()
  }
}

/** Compares payloads without printing a megabyte. */
export function expectPayload(actual, wanted) {
  expect(Buffer.compare(actual, wanted), 0, `payload of ${actual.length} for ${wanted.length} bytes`)
}
