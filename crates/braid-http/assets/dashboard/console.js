// MQTT console: subscribe and publish over the broker's own WebSocket.

import { credentials } from './api.js'
import { card, empty, field, h, prepend, select, setText } from './dom.js'
import { bytes, clock, payload } from './format.js'
import * as mqtt from './mqtt.js'

const KEPT = 200
const WORDS = { connecting: '◌ connecting', connected: '● connected', waiting: '○ not connected', closed: '○ not connected' }

const nothing = () => {}
/** The connection and its messages outlive the view, so that other views may be looked at meanwhile. */
const session = { client: null, state: 'closed', text: '', filters: [], messages: [], draw: nothing, show: nothing }

const qosSelect = () => select([[0, 0], [1, 1]])

function connect(options) {
	session.client = mqtt.connect({
		...options,
		url: new URL('mqtt', document.baseURI.replace(/^http/, 'ws')).href,
		onState: (state, text) => {
			Object.assign(session, { state, text })
			session.draw()
		},
		onMessage: (message) => {
			session.messages.unshift({ ...message, at: Date.now() / 1000 })
			session.messages.length = Math.min(session.messages.length, KEPT)
			session.show(session.messages[0])
		},
	})
}

function messageRow(message) {
	const read = payload(message.payload)
	const more = [read.kind, bytes(message.payload.length), `QoS ${message.qos}`, message.retain && 'retained', message.properties[3], ...message.properties.user.map((pair) => pair.join(': '))]
	return h('li', h('div.message-head', h('time', clock(message.at)), h('code', message.topic), h('span.muted', more.filter(Boolean).join(' · '))),
		read.text && h('pre', read.text))
}

export default function mqttConsole({ signal, attempt, head, body }) {
	const known = credentials()
	const text = (value, attributes = {}) => h('input', { value, autocomplete: 'off', spellcheck: 'false', ...attributes })
	const controls = {
		clientId: text(`dashboard-${crypto.getRandomValues(new Uint32Array(1))[0].toString(16)}`, { required: true }),
		user: text(known.user, { autocomplete: 'username' }),
		password: text(known.password, { type: 'password' }),
	}
	const state = h('span.chip', { role: 'status' })
	const detail = h('p.problem', { role: 'alert', hidden: true })
	const button = h('button')
	const settings = h('fieldset.bare', h('legend.hidden', 'Connection'), field('Client Identifier', controls.clientId), field('User', controls.user), field('Password', controls.password))
	const connection = h('form.inline', { submit: (event) => {
		event.preventDefault()
		if (session.client) {
			session.client.close()
			session.client = null
			session.filters = []
			session.draw()
		} else connect(Object.fromEntries(Object.entries(controls).map(([name, control]) => [name, control.value])))
	} }, settings, button)

	const filter = text('#', { required: true })
	const subscribeQos = qosSelect()
	const priority = text('', { type: 'number', min: 0, max: 65535, placeholder: '100' })
	const filters = h('ul.chips', { 'aria-label': 'Subscriptions' })
	const subscribe = h('form', { submit: (event) => {
		event.preventDefault()
		const name = filter.value
		const options = { qos: Number(subscribeQos.value), priority: priority.value === '' ? null : Number(priority.value) }
		attempt(session.client.subscribe(name, options), (granted) => {
			session.filters = [...session.filters.filter((one) => one.name !== name), { name, granted }]
			session.draw()
		})
	} }, field('Topic filter', filter), h('div.pair', field('QoS', subscribeQos), field('Priority', priority)), h('button', 'Subscribe'), filters)

	const topic = text('', { required: true, placeholder: 'demo/hello' })
	const content = h('textarea', { rows: 4, spellcheck: 'false' })
	const publishQos = qosSelect()
	const retain = h('input', { type: 'checkbox' })
	const sent = h('span.muted', { role: 'status' })
	const publish = h('form', { submit: (event) => {
		event.preventDefault()
		const qos = Number(publishQos.value)
		setText(sent, '')
		attempt(session.client.publish(topic.value, new TextEncoder().encode(content.value), { qos, retain: retain.checked }),
			() => setText(sent, `${qos ? 'Acknowledged' : 'Sent'} at ${clock(Date.now() / 1000)}`))
	} }, field('Topic', topic), field('Payload', content), h('div.pair', field('QoS', publishQos), h('label.choice', retain, 'Retain')), h('div.actions', h('button', 'Publish'), sent))

	const list = h('ol.messages', { 'aria-label': 'Messages, the newest first', tabindex: 0 })
	const none = empty('No messages.', 'Connect and subscribe to a filter; # is everything.')
	const number = h('span.muted')
	const tell = () => {
		none.hidden = session.messages.length > 0
		list.hidden = !none.hidden
		setText(number, session.messages.length === KEPT ? `the last ${KEPT}` : '')
	}
	const clear = h('button', { click: () => {
		session.messages = []
		list.replaceChildren()
		tell()
	} }, 'Clear')
	session.show = (message) => {
		prepend(list, messageRow(message), KEPT)
		tell()
	}
	session.draw = () => {
		setText(state, WORDS[session.state])
		detail.hidden = session.text === ''
		setText(detail, session.text)
		setText(button, session.client ? 'Disconnect' : 'Connect')
		button.className = session.client ? '' : 'primary'
		settings.disabled = session.client !== null
		for (const control of [subscribe, publish].flatMap((form) => [...form.elements])) control.disabled = session.state !== 'connected'
		filters.replaceChildren(...session.filters.map(({ name, granted }) => h('li', h('code', name), ` QoS ${granted} `, h('button.quiet', { 'aria-label': `Unsubscribe from ${name}`, click: () => {
			session.filters = session.filters.filter((one) => one.name !== name)
			session.draw()
			attempt(session.client.unsubscribe(name))
		} }, '✕'))))
	}
	signal.addEventListener('abort', () => Object.assign(session, { show: nothing, draw: nothing }))
	head.append(state)
	list.append(...session.messages.map(messageRow))
	body.append(card('Connection', null, connection, detail), h('div.grid.console',
		h('div.stack', card('Subscribe', null, subscribe), card('Publish', null, publish)),
		card('Messages', h('div.actions', number, clear), list, none)))
	session.draw()
	tell()
}
