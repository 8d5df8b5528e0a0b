// WebSocket server with as much MQTT 5 as the console of the dashboard uses. For the mock only.

import { createHash } from 'node:crypto'

const GUID = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11'
const OPEN = 2
const CLOSE = 8

const string = (text) => Buffer.concat([Buffer.from([Buffer.byteLength(text) >> 8, Buffer.byteLength(text) & 255]), Buffer.from(text)])

function packet(first, ...parts) {
  const body = Buffer.concat(parts)
  const length = []
  for (let rest = body.length; ; rest >>= 7) {
    length.push((rest & 127) | (rest > 127 ? 128 : 0))
    if (rest <= 127) break
  }
  return Buffer.concat([Buffer.from([first, ...length]), body])
}

/** True if the topic matches the filter. */
export function matches(filter, topic) {
  const [wanted, levels] = [filter.split('/'), topic.split('/')]
  for (const [at, level] of wanted.entries()) {
    if (level === '#') return true
    if (at >= levels.length || (level !== '+' && level !== levels[at])) return false
  }
  return wanted.length === levels.length
}

class Connection {
  filters = new Map()
  userProperties = []
  clientId = null
  #bytes = Buffer.alloc(0)
  #packets = Buffer.alloc(0)

  constructor(server, socket) {
    Object.assign(this, { server, socket })
    socket.on('data', (data) => this.#frames(data))
    socket.on('error', () => socket.destroy())
    socket.on('close', () => server.left(this))
  }

  /** Sends bytes of MQTT in one binary frame. */
  send(data) {
    const digits = (shifts) => shifts.map((shift) => (data.length >>> shift) & 255)
    // A browser takes the shortest form of a length only.
    const length = data.length < 126 ? [data.length] : data.length < 65536 ? [126, ...digits([8, 0])] : [127, 0, 0, 0, 0, ...digits([24, 16, 8, 0])]
    this.socket.write(Buffer.concat([Buffer.from([0x80 | OPEN, ...length]), data]))
  }

  #frames(data) {
    this.#bytes = Buffer.concat([this.#bytes, data])
    for (;;) {
      if (this.#bytes.length < 2) return
      const short = this.#bytes[1] & 127
      const at = short === 126 ? 4 : short === 127 ? 10 : 2
      if (this.#bytes.length < at + 4) return
      const length = short === 126 ? this.#bytes.readUInt16BE(2) : short === 127 ? Number(this.#bytes.readBigUInt64BE(2)) : short
      if (this.#bytes.length < at + 4 + length) return
      const opcode = this.#bytes[0] & 15
      const mask = this.#bytes.subarray(at, at + 4)
      const payload = this.#bytes.subarray(at + 4, at + 4 + length).map((byte, index) => byte ^ mask[index % 4])
      this.#bytes = this.#bytes.subarray(at + 4 + length)
      if (opcode === CLOSE) return this.socket.end(Buffer.from([0x88, 0]))
      this.#mqtt(Buffer.from(payload))
    }
  }

  #mqtt(data) {
    this.#packets = Buffer.concat([this.#packets, data])
    for (;;) {
      let [length, at] = [0, 1]
      for (; at < this.#packets.length; at += 1) {
        length |= (this.#packets[at] & 127) << (7 * (at - 1))
        if (this.#packets[at] < 128) break
      }
      if (this.#packets.length < at + 1 + length) return
      const body = this.#packets.subarray(at + 1, at + 1 + length)
      const first = this.#packets[0]
      this.#packets = this.#packets.subarray(at + 1 + length)
      this.#packet(first, body)
    }
  }

  #packet(first, body) {
    const id = body.subarray(0, 2)
    const type = first >> 4
    if (type === 1) {
      // Protocol name, version, flags, Keep Alive, properties of up to 127 bytes, Client Identifier.
      const start = 11 + body[10]
      this.clientId = body.subarray(start + 2, start + 2 + body.readUInt16BE(start)).toString()
      this.connectedAt = Date.now() / 1000
      this.server.joined(this)
      this.send(packet(0x20, Buffer.from([0, 0, 0])))
    } else if (type === 8) {
      const start = 3 + body[2]
      const filter = body.subarray(start + 2, start + 2 + body.readUInt16BE(start)).toString()
      const isValid = !/#./.test(filter)
      if (isValid) this.filters.set(filter, body.at(-1) & 3)
      this.subscribeProperties = body.subarray(3, start).toString()
      this.send(packet(0x90, id, Buffer.from([0, isValid ? body.at(-1) & 3 : 0x8f])))
      this.server.tell('subscribed', { at: Date.now() / 1000, client_id: this.clientId, filter })
    } else if (type === 10) {
      const filter = body.subarray(5).toString()
      this.send(packet(0xb0, id, Buffer.from([0, this.filters.delete(filter) ? 0 : 17])))
    } else if (type === 12) this.send(packet(0xd0))
    else if (type === 3) {
      const qos = (first >> 1) & 3
      const end = 2 + body.readUInt16BE(0)
      const topic = body.subarray(2, end).toString()
      if (qos) this.send(packet(0x40, body.subarray(end, end + 2)))
      const after = end + (qos ? 2 : 0)
      this.server.publish(topic, body.subarray(after + 1 + body[after]))
    } else if (type === 14) this.socket.end()
  }

  deliver(topic, payload) {
    const qos = [...this.filters].find(([filter]) => matches(filter, topic))?.[1]
    if (qos === undefined) return
    this.send(packet(0x30 | (qos << 1), string(topic), Buffer.from(qos ? [0, 1] : []), Buffer.from([0]), payload))
  }
}

/** Connections of the console. */
export class MqttServer {
  connections = new Set()

  constructor(tell) {
    this.tell = tell
  }

  accept(request, socket) {
    if (request.url !== '/mqtt' || request.headers['sec-websocket-protocol'] !== 'mqtt') return socket.end('HTTP/1.1 400 Bad Request\r\n\r\n')
    const key = createHash('sha1').update(request.headers['sec-websocket-key'] + GUID).digest('base64')
    socket.write(`HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Protocol: mqtt\r\nSec-WebSocket-Accept: ${key}\r\n\r\n`)
    this.connections.add(new Connection(this, socket))
  }

  joined({ clientId }) {
    this.tell('connected', { at: Date.now() / 1000, client_id: clientId, transport: 'ws', address: '127.0.0.1' })
  }

  left(connection) {
    this.connections.delete(connection)
    if (connection.clientId) this.tell('disconnected', { at: Date.now() / 1000, client_id: connection.clientId, cause: 'normal' })
  }

  publish(topic, payload) {
    for (const connection of this.connections) connection.deliver(topic, payload)
  }

  /** Entry of a connection in the list of clients. */
  client(id) {
    const found = [...this.connections].find(({ clientId }) => clientId === id)
    return found && { client_id: id, mountpoint: null, user: null, address: '127.0.0.1:50000', transport: 'ws', version: '5.0', connected: true, connected_at: found.connectedAt, disconnected_at: null,
      clean_start: true, expiry_secs: 0, keep_alive_secs: 30, subscriptions: found.filters.size, queued_messages: 0, queued_bytes: 0, inflight: 0, dropped: 0, streams: 1, index: -1, filters: [...found.filters.keys()] }
  }

  /** Ends the connection of a client; false without one. */
  disconnect(id) {
    const found = [...this.connections].find(({ clientId }) => clientId === id)
    found?.socket.destroy()
    return found !== undefined
  }

  close() {
    for (const { socket } of this.connections) socket.destroy()
  }
}
