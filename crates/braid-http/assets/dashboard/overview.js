// Overview: rates, connections, memory, store, health, last events.

import { every, get, query, subscribe } from './api.js'
import { chart } from './chart.js'
import { card, empty, facts, h, prepend, setText } from './dom.js'
import { KINDS, eventRow } from './events.js'
import { TRANSPORTS, bytes, bytesPerSecond, count, perSecond, powerOfTwo, roundUp, short } from './format.js'
import * as history from './history.js'

const LAST_EVENTS = 8
/** They come in thousands when a fleet connects. */
const QUIET_KINDS = ['subscribed', 'unsubscribed']

/** Bars of numbers that share one scale. */
function bars(names) {
	const rows = names.map((name) => [h('span.fill'), h('span.number', '–'), name])
	const set = (values) => rows.forEach(([bar, number], at) => {
		bar.style.width = `${(values[at] / Math.max(1, ...values)) * 100}%`
		setText(number, count(values[at]))
	})
	return { element: h('ul.bars', rows.map(([bar, number, name]) => h('li', h('span', name), h('span.track', bar), number))), set }
}

/** Used memory against the watermarks of the broker. */
function memoryBar() {
	const [used, resting] = [h('span.fill'), h('span.fill.resting')]
	const marks = ['low', 'high'].map((name) => [h('span.mark'), h('span.mark-label', name)])
	const [big, state] = [h('strong', '–'), h('span.muted')]
	const list = facts(['For disconnected clients', 'Low watermark', 'High watermark'])
	const element = h('div', h('p.figure', big, ' ', state), h('div.gauge', h('div.track', used, resting, marks.map(([mark]) => mark)), marks.map(([, label]) => label)), list.element)
	const set = ({ used_bytes, resting_bytes, low_bytes, high_bytes }) => {
		const share = (value) => `${(value / Math.max(high_bytes * 1.15, used_bytes)) * 100}%`
		used.style.width = share(used_bytes)
		resting.style.width = share(Math.min(resting_bytes, used_bytes))
		marks.forEach((pair, at) => pair.forEach((one) => { one.style.left = share([low_bytes, high_bytes][at]) }))
		setText(big, bytes(used_bytes))
		setText(state, used_bytes >= high_bytes ? 'above the high watermark' : used_bytes >= low_bytes ? 'above the low watermark' : 'below the low watermark')
		list.set([resting_bytes, low_bytes, high_bytes].map(bytes))
	}
	return { element, set }
}

export default function overview(view) {
	const { signal, body } = view
	const charts = [
		chart('Messages', [['messages_in', 'in'], ['messages_out', 'out']], perSecond, roundUp),
		chart('Bytes', [['bytes_in', 'in'], ['bytes_out', 'out']], bytesPerSecond, powerOfTwo),
		chart('Connections', [['connects', 'accepted'], ['refusals', 'refused']], perSecond, roundUp),
	]
	const reasons = h('div.reasons', { hidden: true })
	const transports = bars(TRANSPORTS.map((name) => name.toUpperCase()))
	const total = h('strong', '–')
	const memory = memoryBar()
	const sessions = facts(['Sessions', 'Subscriptions', 'Retained messages', 'Messages in', 'Messages out', 'Dropped', 'Refused'])
	const storage = facts(['Store', 'Spool', 'QUIC', 'Handshakes'])
	const events = h('ol.events')
	const none = empty('No event yet.', 'Connects, disconnects and refusals appear here as they happen.')
	body.append(reasons,
		h('div.grid.three', charts.map(({ element }) => element)),
		h('div.grid.four',
			card('Connected clients', null, h('p.figure', total, h('span.muted', ' by transport')), transports.element),
			card('Memory', null, memory.element),
			card('Sessions and messages', null, sessions.element),
			card('Storage and QUIC', null, storage.element)),
		card('Last events', h('a', { href: '#/events' }, 'All events'), events, none))

	history.listen((now) => {
		for (const { draw } of charts) draw()
		reasons.hidden = now.reasons.length === 0
		reasons.replaceChildren(h('h2', `The broker is ${now.status}`), h('ul', now.reasons.map((reason) => h('li', reason))))
		transports.set(TRANSPORTS.map((name) => now.connections[name] ?? 0))
		setText(total, count(now.connections.total))
		memory.set(now.memory)
		const { totals } = now
		sessions.set([count(now.sessions), count(now.subscriptions), `${count(now.retained.count)} · ${bytes(now.retained.bytes)}`,
			`${short(totals.messages_in)} · ${bytes(totals.bytes_in)}`, `${short(totals.messages_out)} · ${bytes(totals.bytes_out)}`, count(totals.dropped), count(totals.refused)])
		storage.set([`${now.store.state} · ${bytes(now.store.bytes)}`, `${now.spool.state} · ${bytes(now.spool.bytes)}`, now.quic.state,
			count(now.quic.handshakes)])
	}, signal)
	every(1000, async () => history.add(await get('overview')), view)
	const kinds = KINDS.filter((kind) => !QUIET_KINDS.includes(kind)).join(',')
	subscribe(() => `events${query({ kinds })}`, (kind, data) => {
		none.hidden = true
		prepend(events, eventRow(kind, data), LAST_EVENTS)
	}, view)
}
