// Small MQTT 5 client over WebSocket: QoS 0 and 1; reconnects and subscribes again.

const [CONNECT, CONNACK, PUBLISH, PUBACK, SUBSCRIBE, UNSUBSCRIBE, PINGREQ, PINGRESP, DISCONNECT] = [1, 2, 3, 4, 8, 10, 12, 13, 14]
const KEEP_ALIVE_SECS = 30
const MAX_PACKET = 1 << 20
const LONGEST_PAUSE = 30000
const REASONS = {
	0x85: 'Client Identifier not valid', 0x86: 'bad user name or password', 0x87: 'not authorized',
	0x89: 'server busy', 0x8a: 'banned', 0x8b: 'server shutting down', 0x8e: 'session taken over', 0x8f: 'topic filter not valid',
	0x90: 'topic name not valid', 0x95: 'packet too large', 0x97: 'quota exceeded', 0x98: 'ended by an operator', 0x9f: 'connection rate exceeded',
}
/** Properties of CONNACK and PUBLISH by the length of the value; 0: string or binary, 5: varint, 6: pair. */
const PROPERTIES = [[3, 8, 9, 18, 21, 22, 26, 28, 31], [1, 36, 37, 40, 41, 42], [19, 33, 34, 35], [], [2, 17, 39], [11], [38]]

const reason = (code) => REASONS[code] ?? `reason 0x${code.toString(16)}`

// === Encoding and decoding ===

const uint16 = (value) => [value >> 8, value & 255]
const string = (text) => {
	const data = new TextEncoder().encode(text)
	if (data.length > 65535) throw new Error('The text has more than 65,535 bytes.')
	return [...uint16(data.length), ...data]
}
const varint = (value) => (value < 128 ? [value] : [(value & 127) | 128, ...varint(value >>> 7)])

function packet(type, flags, head, payload = []) {
	const start = [(type << 4) | flags, ...varint(head.length + payload.length), ...head]
	const whole = new Uint8Array(start.length + payload.length)
	whole.set(start)
	whole.set(payload, start.length)
	return whole
}

class Reader {
	at = 0

	constructor(data) {
		this.data = data
	}

	take(length) {
		const end = this.at + length
		if (end > this.data.length) throw new Error('The broker sent too short a packet')
		return this.data.subarray(this.at, (this.at = end))
	}

	number(length) {
		return this.take(length).reduce((sum, byte) => sum * 256 + byte, 0)
	}

	text() {
		return new TextDecoder().decode(this.take(this.number(2)))
	}

	varint() {
		for (let value = 0, shift = 0; shift < 28; shift += 7) {
			const byte = this.number(1)
			value |= (byte & 127) << shift
			if (byte < 128) return value
		}
		throw new Error('The broker sent a bad length')
	}

	properties() {
		const end = this.varint() + this.at
		const found = { user: [] }
		while (this.at < end) {
			const id = this.number(1)
			const kind = PROPERTIES.findIndex((ids) => ids.includes(id))
			if (kind < 0) throw new Error(`The broker sent the unknown property ${id}`)
			if (kind === 6) found.user.push([this.text(), this.text()])
			else found[id] = kind === 0 ? this.text() : kind === 5 ? this.varint() : this.number(kind)
		}
		return found
	}
}

// === Client ===

/** Opens a connection. `onState(state, text)` gets connecting, connected, waiting or closed. */
export function connect({ url, clientId, user, password, onState, onMessage }) {
	const filters = new Map()
	const waiting = new Map()
	let socket, buffer, ping, retry, unanswered, why
	let pause = 1000
	let lastId = 0

	const end = (text) => {
		why = text
		socket.close()
	}
	const send = (data) => {
		if (socket.readyState !== WebSocket.OPEN) throw new Error('There is no connection.')
		socket.send(data)
	}
	/** Sends a packet with an identifier and waits for its acknowledgement. */
	const request = (build) => new Promise((resolve, reject) => {
		if (waiting.size > 60000) throw new Error('Too many packets are unanswered.')
		do lastId = (lastId % 65535) + 1
		while (waiting.has(lastId))
		send(build(uint16(lastId)))
		waiting.set(lastId, { resolve, reject })
	})
	const requestFilter = (filter, { qos, priority }) => {
		const property = priority === null ? [] : [38, ...string('braid-priority'), ...string(String(priority))]
		return request((id) => packet(SUBSCRIBE, 2, [...id, ...varint(property.length), ...property, ...string(filter), qos]))
	}

	const open = () => {
		onState('connecting', '')
		buffer = new Uint8Array()
		why = 'The connection ended'
		unanswered = false
		socket = new WebSocket(url, 'mqtt')
		socket.binaryType = 'arraybuffer'
		socket.onopen = () => send(packet(CONNECT, 0, [...string('MQTT'), 5, 2 | (user ? 128 : 0) | (password ? 64 : 0), ...uint16(KEEP_ALIVE_SECS),
			5, 39, ...uint16(MAX_PACKET >> 16), ...uint16(MAX_PACKET & 65535), ...string(clientId), ...(user ? string(user) : []), ...(password ? string(password) : [])]))
		socket.onclose = ended
		socket.onmessage = ({ data }) => {
			try {
				receive(new Uint8Array(data))
			} catch (error) {
				end(error.message)
			}
		}
	}

	const ended = () => {
		clearInterval(ping)
		for (const { reject } of waiting.values()) reject(new Error('The connection ended before the answer.'))
		waiting.clear()
		if (why === null) return
		onState('waiting', `${why}. Next try in ${pause / 1000} s.`)
		retry = setTimeout(open, pause)
		pause = Math.min(LONGEST_PAUSE, pause * 2)
	}

	const receive = (data) => {
		let rest = new Uint8Array(buffer.length + data.length)
		rest.set(buffer)
		rest.set(data, buffer.length)
		for (;;) {
			const size = rest.subarray(1, 5).findIndex((byte) => byte < 128) + 1
			if (size === 0 && rest.length < 5) break
			const reader = new Reader(rest.subarray(1))
			const length = reader.varint()
			if (length > MAX_PACKET) throw new Error('The broker sent too large a packet')
			if (rest.length < 1 + size + length) break
			handle(rest[0] >> 4, rest[0] & 15, new Reader(reader.take(length)))
			rest = rest.subarray(1 + size + length)
		}
		buffer = rest
	}

	const handle = (type, flags, reader) => {
		if (type === PUBLISH) {
			const topic = reader.text()
			const qos = flags >> 1 & 3
			const id = qos && reader.take(2)
			const properties = reader.properties()
			onMessage({ topic, payload: reader.data.slice(reader.at), qos, retain: flags % 2 === 1, properties })
			if (id) send(packet(PUBACK, 0, id))
		} else if (type === CONNACK) accepted(reader)
		else if (type === PINGRESP) unanswered = false
		else if (type === DISCONNECT) why = `The broker ended the connection: ${reason(reader.data[0] ?? 0)}`
		else {
			const id = reader.number(2)
			const { resolve, reject } = waiting.get(id) ?? {}
			waiting.delete(id)
			if (type !== PUBACK) reader.properties()
			const code = reader.data[reader.at] ?? 0
			if (code < 128) resolve?.(code)
			else reject?.(new Error(`The broker refused it: ${reason(code)}.`))
		}
	}

	const accepted = (reader) => {
		const code = reader.number(2) & 255
		if (code > 127) return end(`The broker refused the connection: ${reason(code)}`)
		const keepAlive = reader.properties()[19] ?? KEEP_ALIVE_SECS
		pause = 1000
		if (keepAlive) ping = setInterval(() => {
			if (unanswered) return end('The broker does not answer')
			unanswered = true
			send(packet(PINGREQ, 0, []))
		}, keepAlive * 750)
		onState('connected', '')
		for (const [filter, options] of filters) requestFilter(filter, options).catch(() => {})
	}

	open()
	return {
		/** Subscribes; `priority` is that of the deliveries, or null. Resolves with the granted QoS. */
		async subscribe(filter, options) {
			const granted = await requestFilter(filter, options)
			filters.set(filter, options)
			return granted
		},
		async unsubscribe(filter) {
			filters.delete(filter)
			await request((id) => packet(UNSUBSCRIBE, 2, [...id, 0, ...string(filter)]))
		},
		/** Publishes; with QoS 1 resolves when the broker has acknowledged. */
		async publish(topic, payload, { qos, retain }) {
			const build = (id) => packet(PUBLISH, (qos << 1) | (retain ? 1 : 0), [...string(topic), ...id, 0], payload)
			if (qos) await request(build)
			else send(build([]))
		},
		close() {
			clearTimeout(retry)
			if (socket.readyState === WebSocket.OPEN) send(packet(DISCONNECT, 0, []))
			end(null)
			onState('closed', '')
		},
	}
}
