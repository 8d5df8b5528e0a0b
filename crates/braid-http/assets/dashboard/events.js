// Live list of the broker's events.

import { clientHref, query, subscribe } from './api.js'
import { empty, h, prepend, setText } from './dom.js'
import { clock } from './format.js'

const KEPT = 500
const SYMBOLS = { connected: '→', disconnected: '←', refused: '✕', banned: '⊘', moved: '⇄', subscribed: '+', unsubscribed: '−', expired: '◷', decision: '◆', listener: '◉', lost: '…' }
export const KINDS = Object.keys(SYMBOLS)
const BAD = ['refused', 'banned', 'lost']
const NAMED = ['at', 'client_id', 'user', 'address', 'transport', 'cause']

export function eventRow(kind, data) {
	const rest = Object.entries(data).filter(([name, value]) => !NAMED.includes(name) && value !== null)
	const more = rest.map(([name, value]) => `${name.replaceAll('_', ' ')} ${typeof value === 'object' ? JSON.stringify(value) : value}`)
	const about = [data.user && `user ${data.user}`, data.address, data.transport?.toUpperCase(), data.cause, ...more].filter(Boolean).join(' · ')
	return h('li', { class: BAD.includes(kind) && 'bad' },
		h('time', clock(data.at)),
		h('span.kind', h('span.symbol', { 'aria-hidden': 'true' }, SYMBOLS[kind] ?? '•'), kind),
		h('span.about', data.client_id && h('a', { href: clientHref(data) }, data.client_id), h('span.muted', about)))
}

export default function events(view) {
	const { head, body } = view
	const list = h('ol.events', { 'aria-label': 'Events, the newest first' })
	const none = empty('Waiting for events.', 'They appear as they happen; earlier ones are not kept.')
	const counter = h('span.muted', { role: 'status' })
	const wanted = new Set(KINDS)
	let waiting = []
	let paused = false

	const pause = h('button', { 'aria-pressed': 'false', click: () => {
		paused = !paused
		pause.setAttribute('aria-pressed', String(paused))
		setText(pause, paused ? 'Continue' : 'Pause')
		if (!paused) {
			for (const [kind, data] of waiting) add(kind, data)
			waiting = []
		}
		tell()
	} }, 'Pause')
	const clear = h('button', { click: () => {
		list.replaceChildren()
		none.hidden = false
		waiting = []
		tell()
	} }, 'Clear')
	const boxes = KINDS.map((kind) => h('label.choice', h('input', { type: 'checkbox', checked: true, change: ({ target }) => {
		if (target.checked) wanted.add(kind)
		else wanted.delete(kind)
		reconnect()
	} }), kind))
	head.append(counter, h('div.actions', clear, pause))
	body.append(h('fieldset.filters', h('legend', 'Kinds'), boxes), h('div.card', list, none))

	const tell = () => setText(counter, paused ? `Paused, ${waiting.length}${waiting.length === KEPT ? ' or more' : ''} new` : `${list.children.length} shown`)
	const add = (kind, data) => {
		if (!wanted.has(kind)) return
		none.hidden = true
		prepend(list, eventRow(kind, data), KEPT)
	}
	const path = () => (wanted.size === 0 ? null : `events${wanted.size < KINDS.length ? query({ kinds: [...wanted].join(',') }) : ''}`)
	const reconnect = subscribe(path, (kind, data) => {
		if (!paused) add(kind, data)
		else waiting = [...waiting, [kind, data]].slice(-KEPT)
		tell()
	}, view)
	tell()
}
