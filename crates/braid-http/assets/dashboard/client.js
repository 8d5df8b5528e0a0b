// One client: its streams as lanes, path, gate, session, subscriptions and Will.

import { change, every, get, query as toQuery, subscribe } from './api.js'
import { card, confirm, empty, facts, h, notify, setText, table } from './dom.js'
import { bytes, bytesPerSecond, clock, count, duration, milliseconds, percent, since } from './format.js'
import { lanes } from './lanes.js'

const DETAIL_INTERVAL = 5000
const PATH = { in_use: '● in use', standby: '○ standby', unavailable: '✕ does not answer' }
const GATE = {
	off: 'off: the congestion control sends as it is',
	learning: 'learning: measures the path',
	open: 'open: the path is not limited',
	holding: 'holding: bulk waits so that no queue grows in the network',
}

export default function client(view) {
	const { signal, attempt, head, body, parts, query: { mountpoint } } = view
	const id = parts[1]
	if (['.', '..'].includes(id)) {
		// Paths of the API that would name it.
		body.append(empty('This client cannot be shown.', 'Browsers leave . and .. out of addresses. It can be banned by its name.'))
		return
	}
	const path = `clients/${encodeURIComponent(id)}`
	const of = (more) => toQuery({ mountpoint, ...more })
	const state = h('span.chip', '…')
	const end = (title, text, label, query, done) => async () => {
		if (!(await confirm(title, text, label))) return
		attempt(change('DELETE', path + of(query)), () => {
			notify(done)
			refresh()
		})
	}
	const disconnect = h('button.danger', { click: end(`Disconnect ${id}?`, 'It may connect again at once; its session stays.', 'Disconnect', {}, `${id} is disconnected`) }, 'Disconnect …')
	const remove = h('button', { click: end(`Delete the session of ${id}?`, 'Subscriptions and queued messages are lost, and the connection is closed.', 'Delete the session', { session: true }, `The session of ${id} is deleted`) }, 'Delete session …')
	head.prepend(h('a.back', { href: '#/clients' }, '← Clients'))
	head.append(state, h('div.actions', remove, disconnect))

	const pathFacts = facts(['Round trip', 'Lost', 'Congestion window', 'Largest packet', 'Address', 'Address moves'])
	const noPath = h('p.muted', { hidden: true }, 'The operating system keeps the figures of this path.')
	const gateState = h('p.figure', '–')
	const gateFacts = facts(['Rate of the path', 'Queue in the network', 'Kind of path'])
	const road = lanes(signal)
	const noStreams = empty('No connection.', 'Lanes appear when the client is connected.')
	noStreams.hidden = true
	const paths = table('Paths', [
		['Path', (one) => one.number],
		['State', (one) => PATH[one.state] ?? one.state],
		['Address', (one) => h('code', one.address)],
		['Round trip', (one) => milliseconds(one.rtt_ms)],
		['Lost', (one) => `${count(one.lost_packets)} of ${count(one.sent_packets)}`],
		['To it', (one) => bytes(one.sent_bytes)],
		['From it', (one) => bytes(one.received_bytes)],
	], 'One path.')
	const session = facts(['User', 'MQTT', 'Since', 'Keep Alive', 'Session expiry', 'Clean start', 'Queued', 'Unacknowledged', 'Dropped', 'Tenant'])
	const will = h('div')
	const subscriptions = table('Subscriptions', [
		['Filter', (one) => h('code', one.filter)],
		['QoS', (one) => one.qos],
		['Options', (one) => [one.no_local && 'no local', one.retain_as_published && 'retain as published', `retained: ${['sent', 'sent if new', 'not sent'][one.retain_handling] ?? one.retain_handling}`].filter(Boolean).join(', ')],
		['Identifier', (one) => one.identifier],
	], 'No subscriptions.')
	const pathsCard = card('Paths', h('span.muted', 'Of a client with several interfaces'), paths.element)
	pathsCard.hidden = true
	body.append(
		card('Streams', h('span.muted', 'The most urgent is on top'), road.element, noStreams),
		h('div.grid.three',
			card('Path', null, pathFacts.element, noPath),
			h('div.stack', card('Gate', null, gateState, gateFacts.element), card('Will', null, will)),
			card('Session', null, session.element)),
		pathsCard,
		card('Subscriptions', null, subscriptions.element))

	const showStreams = (now) => {
		road.update(now)
		road.element.hidden = now.streams.length === 0
		noStreams.hidden = now.streams.length > 0
		const { path: known, gate } = now
		noPath.hidden = known !== null
		pathFacts.element.hidden = known === null
		if (known) {
			pathFacts.set([milliseconds(known.rtt_ms), `${percent(known.loss_ratio)} · ${count(known.lost_packets)} of ${count(known.sent_packets)}`,
				bytes(known.cwnd_bytes), bytes(known.mtu_bytes), known.address, count(known.moves)])
		}
		pathsCard.hidden = now.paths.length < 2
		paths.set(now.paths)
		setText(gateState, gate ? (GATE[gate.state] ?? gate.state) : 'This transport has no gate.')
		gateFacts.element.hidden = !gate
		if (gate) gateFacts.set([bytesPerSecond(gate.rate_per_sec), milliseconds(gate.queue_ms), gate.class])
	}
	const showClient = (one) => {
		setText(state, one.connected ? `● connected by ${one.transport?.toUpperCase() ?? 'a link'}` : `○ offline, ${since(one.disconnected_at)}`)
		disconnect.disabled = !one.connected
		session.set([one.user, one.version, clock(one.connected_at ?? one.disconnected_at), one.keep_alive_secs === null ? null : `${one.keep_alive_secs} s`,
			one.expiry_secs === null ? 'never' : duration(one.expiry_secs), { true: 'yes', false: 'no' }[one.clean_start], `${count(one.queued_messages)} · ${bytes(one.queued_bytes)}`, count(one.inflight), count(one.dropped), one.mountpoint])
		subscriptions.set(one.filters)
		will.replaceChildren(one.will
			? h('p', h('code', one.will.topic), h('span.muted', ` QoS ${one.will.qos}${one.will.retain ? ', retained' : ''}${one.will.delay_secs ? `, ${duration(one.will.delay_secs)} after the end of the connection` : ''}`))
			: h('p.muted', 'No Will.'))
		remove.disabled = false
		if (!one.connected) hideStreams()
	}
	const hideStreams = () => {
		road.element.hidden = true
		noStreams.hidden = false
	}
	const refresh = every(DETAIL_INTERVAL, async () => {
		try {
			showClient(await get(path + of()))
		} catch (error) {
			if (error.status === 404) {
				setText(state, '○ no session')
				disconnect.disabled = remove.disabled = true
				hideStreams()
			}
			throw error
		}
	}, view)
	subscribe(() => `${path}/streams/live${of()}`, (event, data) => event === 'streams' && showStreams(data), {
		signal,
		// The answer for the client itself says the same of an absent and of a disconnected one.
		report: (error, source) => view.report([404, 409].includes(error?.status) ? null : error, source),
	})
}
