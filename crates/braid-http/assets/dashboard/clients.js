// Clients: filter and virtual table.

import { clientHref, every, query as toQuery } from './api.js'
import { empty, field, h, select, setText } from './dom.js'
import { TRANSPORTS, bytes, count, duration } from './format.js'
import { virtualList } from './virtual.js'

const REFRESH = 5000
const TYPING_PAUSE = 250

const upper = (text) => text?.toUpperCase() ?? '–'

/** Label, class, text of a client. */
const COLUMNS = [
	['Client', 'client', (one) => (one.mountpoint ? `${one.client_id} · ${one.mountpoint}` : one.client_id)],
	['State', 'state', (one) => (one.connected ? '● online' : '○ offline')],
	['Since', 'since', (one) => duration(Date.now() / 1000 - (one.connected ? one.connected_at : one.disconnected_at))],
	['User', 'user', (one) => one.user ?? '–'],
	['Transport', 'transport', (one) => upper(one.transport)],
	['Address', 'address', (one) => one.address ?? '–'],
	['Streams', 'number', (one) => count(one.streams)],
	['Filters', 'number', (one) => count(one.subscriptions)],
	['Queued', 'number queued', (one) => (one.queued_messages ? `${count(one.queued_messages)} · ${bytes(one.queued_bytes)}` : '0')],
	['Dropped', 'number', (one) => count(one.dropped)],
]

export default function clients(view) {
	const { signal, attempt, query, head, body } = view
	const text = (value = '') => h('input', { type: 'search', autocomplete: 'off', spellcheck: 'false', value })
	const controls = {
		prefix: text(query.prefix),
		user: text(query.user),
		transport: select([['', 'Any'], ...TRANSPORTS.map((name) => [name, upper(name)])]),
		connected: select([['', 'Any'], ['true', 'Connected'], ['false', 'Offline']]),
	}
	for (const name of ['transport', 'connected']) controls[name].value = query[name] ?? ''
	const filter = () => Object.fromEntries(Object.entries(controls).map(([name, control]) => [name, control.value.trim()]))
	const number = h('span.muted', { role: 'status' })
	const none = empty('No client matches.', 'Clients appear here when they connect; sessions of disconnected ones stay until they expire.')
	none.hidden = true
	const list = virtualList('Clients', 'clients', COLUMNS, {
		filter,
		href: clientHref,
		onCount: (total, isMore) => {
			setText(number, `${count(total)}${isMore ? ' or more' : ''} ${total === 1 && !isMore ? 'client' : 'clients'}`)
			none.hidden = total > 0 || isMore
			list.element.hidden = !none.hidden
		},
	})
	head.append(number)
	body.append(h('form.filters', { role: 'search', submit: (event) => event.preventDefault() },
		field('Client begins with', controls.prefix), field('User', controls.user), field('Transport', controls.transport), field('State', controls.connected)),
	list.element, none)

	const apply = async () => {
		history.replaceState(null, '', `#/clients${toQuery(filter())}`)
		await attempt(list.reload())
	}
	let timer = null
	for (const control of Object.values(controls)) {
		control.addEventListener('input', () => {
			clearTimeout(timer)
			timer = setTimeout(apply, control.tagName === 'SELECT' ? 0 : TYPING_PAUSE)
		})
	}
	every(REFRESH, list.refresh, view)
	signal.addEventListener('abort', () => {
		clearTimeout(timer)
		list.stop()
	})
}
