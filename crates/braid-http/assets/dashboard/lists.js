// Views that are one table: bans, listeners, configuration, decisions of autoquic.

import { change, every, get, query } from './api.js'
import { card, confirm, field, h, notify, select, setText, table } from './dom.js'
import { clock, count, duration, milliseconds, percent } from './format.js'

const REFRESH = 5000
/** Reads the longest page of a list into a table. */
const read = async (path, list) => {
	const { items, total } = await get(`${path}?limit=1000`)
	list.set(items, total)
}
const code = (text) => h('code', text)

const TARGETS = ['client', 'user', 'addresses']

export function bans(view) {
	const { attempt, body } = view
	const target = select(TARGETS.map((name) => [name, name]))
	const value = h('input', { required: true, autocomplete: 'off', spellcheck: 'false' })
	const minutes = h('input', { type: 'number', min: 1, placeholder: 'for good' })
	const reason = h('input', { autocomplete: 'off' })
	const targetOf = (ban) => TARGETS.find((name) => ban[name])
	const textOf = (ban) => [...TARGETS, 'mountpoint'].map((name) => ban[name]).filter(Boolean).join(' · ')
	const list = table('Bans', [
		['Kind', targetOf],
		['Banned', (ban) => code(textOf(ban))],
		['Until', (ban) => (ban.expires_at ? clock(ban.expires_at) : 'it is lifted')],
		['Reason', (ban) => ban.reason],
		['Action', (ban) => h('button', { 'aria-label': `Lift the ban of ${ban[targetOf(ban)]}`, click: async () => {
			const name = targetOf(ban)
			if (!(await confirm('Lift the ban?', `The ${name} ${ban[name]} may connect again.`, 'Lift the ban'))) return
			const { client, mountpoint, user, addresses } = ban
			attempt(change('DELETE', `bans${query({ client, mountpoint, user, addresses })}`), refresh)
		} }, 'Lift …')],
	], 'There is no ban.')
	const form = h('form.inline', { submit: (event) => {
		event.preventDefault()
		const ban = { [target.value]: value.value.trim() }
		if (minutes.value) ban.secs = Number(minutes.value) * 60
		if (reason.value) ban.reason = reason.value
		attempt(change('POST', 'bans', ban), () => {
			notify(`${value.value} is banned`)
			form.reset()
			refresh()
		})
	} }, field('Kind', target), field('Client, user or network', value), field('Minutes', minutes), field('Reason', reason), h('button.danger', 'Ban'))
	body.append(card('Add a ban', null, form), h('div.card', list.element))
	const refresh = every(REFRESH, () => read('bans', list), view)
}

export function listeners(view) {
	const { body } = view
	const list = table('Listeners', [
		['Name', (one) => one.name],
		['Transport', (one) => one.transport.toUpperCase()],
		['Address', (one) => (one.address ? code(one.address) : h('span', code('/mqtt'), ' of the HTTP front'))],
		['State', (one) => (one.available ? '● listening' : h('strong.bad', '✕ not available'))],
		['Connections', (one) => count(one.connections), 'number'],
		['Restarts', (one) => count(one.restarts), 'number'],
	], 'No listener.')
	body.append(h('div.card', list.element))
	every(REFRESH, () => read('listeners', list), view)
}

/** Settings as [name, value] with names as in `--set`. */
const flatten = (value, prefix = '') => (value === null || typeof value !== 'object' || Array.isArray(value) ? [[prefix.slice(1), JSON.stringify(value)]]
	: Object.entries(value).flatMap(([name, inner]) => flatten(inner, `${prefix}.${name}`)))

export function config(view) {
	const { attempt, head, body } = view
	let settings = []
	const search = h('input', { type: 'search', autocomplete: 'off', input: () => draw() })
	const list = table('Settings', [['Setting', ([name]) => code(name)], ['Value', ([, value]) => code(value)]], 'No setting has this in its name or value.')
	const draw = () => list.set(settings.filter((pair) => pair.join(' ').includes(search.value.trim())))
	const reload = h('button', { click: async () => {
		if (!(await confirm('Read the configuration again?', 'Certificates, users, rules and bans are read from their files. If one is not valid, nothing changes.', 'Reload'))) return
		attempt(change('POST', 'reload'), ({ reloaded }) => {
			notify(reloaded.length ? `Reloaded: ${reloaded.join(', ')}` : 'Nothing had changed')
			refresh()
		})
	} }, 'Reload …')
	head.append(h('div.actions', reload))
	body.append(h('div.filters', field('Find', search)), h('div.card', list.element))
	const refresh = every(60000, async () => {
		settings = flatten(await get('config'))
		draw()
	}, view)
}

export function autoquic(view) {
	const { head, body } = view
	const mode = h('span.chip', '–')
	const two = (first, second) => h('div', first, h('br'), h('span.muted', second))
	const path = (one, cost) => two(one ? `${milliseconds(one.rtt_ms)} · ${percent(one.loss_ratio)}` : '–', milliseconds(cost))
	const protocol = (name) => (name === 'quic' ? '◆ QUIC' : '▬ TCP')
	const network = ['Network, listener', (one) => two(code(one.network), one.listener)]
	const networks = table('Networks', [
		network,
		['Offered, for', (one) => two(h('strong', protocol(one.chosen)), one.changed_secs === null ? 'always' : duration(one.changed_secs))],
		['TCP: RTT · loss, cost', (one) => path(one.tcp, one.cost_tcp_ms), 'number'],
		['QUIC: RTT · loss, cost', (one) => path(one.quic, one.cost_quic_ms), 'number'],
		['Flaps', (one) => count(one.flaps), 'number'],
		['Failures of QUIC', (one) => count(one.failures), 'number'],
	], 'No client has used HTTPS yet.')
	const changes = table('Changes', [
		['At', (one) => clock(one.at)],
		network,
		['Offered', (one) => `${protocol(one.from)} → ${protocol(one.to)}`],
		['Reason', (one) => one.text],
	], 'The offer has not changed yet.')
	/** Seconds since a client of the network was seen last. */
	const age = ({ tcp, quic }) => Math.min(...[tcp, quic].map((path) => path?.age_secs ?? Number.MAX_VALUE))
	head.append(mode)
	body.append(h('p.muted', 'The protocol that the broker offers to HTTP clients of each network, the paths as both measured them, and the predicted cost of a page over each.'), card('Networks', null, networks.element), card('Changes', null, changes.element))
	every(REFRESH, async () => {
		const [answer, known] = await Promise.all([get('autoquic'), get('autoquic/networks?limit=1000')])
		setText(mode, answer.mode === 'off' ? 'off: there is no HTTP/3' : `mode ${answer.mode}`)
		networks.set(known.items.sort((one, other) => age(one) - age(other)), known.total)
		changes.set(answer.changes)
	}, view)
}
