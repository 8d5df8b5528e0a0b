// Topic tree, loaded by level, with the last and the retained message of a topic.

import { change, every, get, query } from './api.js'
import { card, confirm, empty, facts, h, notify, setAttribute, setText } from './dom.js'
import { bytes, clock, count, fromBase64, payload, since } from './format.js'

const REFRESH = 5000
/** Expanded levels that are read again, and children that are shown at once. */
const REFRESHED_LEVELS = 20
const CHILDREN = 500

export default function topics(view) {
	const { attempt, body, query: asked } = view
	const tree = h('ul.tree', { role: 'tree', 'aria-label': 'Topics' })
	const none = empty('No topic yet.', 'Nothing is retained. Topics appear when messages are published while you look.')
	none.hidden = true
	const recorded = h('p.muted.recorded')
	const title = h('code.topic')
	const about = facts(['Messages', 'Last', 'Size', 'QoS'])
	const last = h('pre', { tabindex: 0, 'aria-label': 'Last message' })
	const retained = h('div')
	const detail = h('div', { hidden: true }, title, about.element, h('h3', 'Last message since you look, or else the retained one'), last, h('h3', 'Retained message'), retained)
	const hint = empty('Choose a topic.', 'The arrow keys move in the tree; Enter shows a topic.')
	body.append(h('div.grid.two.topics', card('Tree', null, recorded, tree, none), card('Topic', null, hint, detail)))
	const nodes = new WeakMap()
	const items = () => [...tree.querySelectorAll('[role=treeitem]')]
	let chosen = null
	let begun = null

	const makeNode = (level, depth) => {
		const number = h('span.muted.number')
		const row = h('div.tree-row', h('span.twist', { 'aria-hidden': 'true' }), h('span.name', level.name || '(empty level)'), number)
		row.style.paddingInlineStart = `${depth * 16 + 4}px`
		const element = h('li', { role: 'treeitem', tabindex: -1, 'aria-level': depth + 1, 'aria-selected': 'false' }, row)
		const node = { level, depth, element, number, group: null, open: false }
		row.addEventListener('click', () => {
			toggle(node)
			choose(node)
		})
		nodes.set(element, node)
		return node
	}
	const describe = (node) => {
		setText(node.number, node.level.messages ? count(node.level.messages) : '')
		setAttribute(node.element, 'aria-expanded', node.level.children ? String(node.open) : null)
	}

	/** Merges the children of a node, or of the root for null, into the tree. */
	const readLevel = async (node) => {
		const { levels, since: start, missed, truncated } = await get(`topics${node ? `?prefix=${encodeURIComponent(node.level.topic)}` : ''}`)
		begun = start
		setText(recorded, `Messages are recorded since ${clock(begun)}, while a page of topics is open.${missed ? ` ${count(missed)} were left out: too many at once, or on too many topics.` : ''}`)
		const parent = node?.group ?? tree
		const children = [...parent.children]
		const known = new Map(children.map((element) => nodes.get(element)).filter(Boolean).map((child) => [child.level.name, child]))
		const elements = levels.slice(0, CHILDREN).map((level) => {
			const child = known.get(level.name) ?? makeNode(level, node ? node.depth + 1 : 0)
			child.level = level
			child.isInLongList = truncated
			describe(child)
			if (child === chosen) showTopic()
			return child.element
		})
		if (levels.length > CHILDREN) elements.push(h('li.muted.more', { role: 'none' }, `and ${count(levels.length - CHILDREN)} more`))
		if (elements.length !== children.length || elements.some((element, at) => element !== children[at] && nodes.has(element))) {
			const focused = document.activeElement
			parent.replaceChildren(...elements)
			if (parent.contains(focused)) focused.focus()
		}
		if (!node) none.hidden = levels.length > 0
		if (!tree.querySelector('[tabindex="0"]')) items()[0]?.setAttribute('tabindex', '0')
	}
	const toggle = (node, wanted = !node.open) => {
		if (!node.level.children || wanted === node.open) return
		node.open = wanted
		if (!node.group) {
			node.group = h('ul', { role: 'group' })
			node.element.append(node.group)
		}
		node.group.hidden = !wanted
		describe(node)
		if (wanted) attempt(readLevel(node))
	}
	const choose = (node) => {
		chosen?.element.setAttribute('aria-selected', 'false')
		chosen = node
		node.element.setAttribute('aria-selected', 'true')
		focus(node.element)
		hint.hidden = true
		detail.hidden = false
		showTopic()
		attempt(readRetained())
		history.replaceState(null, '', `#/topics${query({ topic: node.level.topic })}`)
	}
	const focus = (element) => {
		tree.querySelector('[tabindex="0"]')?.setAttribute('tabindex', '-1')
		element.setAttribute('tabindex', '0')
		element.focus()
	}
	tree.addEventListener('keydown', (event) => {
		const shown = items().filter((item) => item.checkVisibility())
		const at = shown.indexOf(document.activeElement)
		if (at < 0) return
		const node = nodes.get(shown[at])
		const parent = shown[at].parentElement.closest('[role=treeitem]')
		if (event.key === 'ArrowRight' && !node.open) toggle(node, true)
		else if (event.key === 'ArrowLeft' && node.open) toggle(node, false)
		else if (event.key === 'ArrowLeft' && parent) focus(parent)
		else if (event.key === 'Enter' || event.key === ' ') choose(node)
		else {
			const to = { ArrowDown: at + 1, ArrowRight: at + 1, ArrowUp: at - 1, Home: 0, End: shown.length - 1 }[event.key]
			if (to === undefined) return
			if (shown[to]) focus(shown[to])
		}
		event.preventDefault()
	})

	const beginning = ({ text, size_bytes: size }) => {
		if (text === null) return chosen.isInLongList ? '(binary, or left out of a long list)' : '(binary)'
		const data = new TextEncoder().encode(text)
		return (payload(data).text || '(empty)') + (size > data.length ? `\n… ${bytes(size - data.length)} more` : '')
	}
	const showTopic = () => {
		const { topic, messages, last: message } = chosen.level
		setText(title, topic)
		about.set([`${count(messages)} since ${clock(begun)}`, since(message?.at), bytes(message?.size_bytes), message?.qos])
		setText(last, message ? beginning(message) : 'None is retained on this topic itself, and none was published since you look.')
	}
	const readRetained = async () => {
		const { topic } = chosen.level
		const path = `retained/${encodeURIComponent(topic)}`
		const found = await get(path).catch((error) => {
			if (error.status === 404) return null
			throw error
		})
		if (topic !== chosen.level.topic) return
		if (!found) {
			retained.replaceChildren(h('p.muted', 'Nothing is retained for this topic.'))
			return
		}
		const read = found.payload === null ? { kind: 'too large to show', text: '…' } : payload(fromBase64(found.payload))
		const remove = h('button.danger', { click: async () => {
			if (!(await confirm('Delete the retained message?', `New subscribers of ${topic} no longer receive it.`, 'Delete'))) return
			attempt(change('DELETE', path), () => {
				notify(`The retained message of ${topic} is deleted`)
				readRetained()
			})
		} }, 'Delete …')
		retained.replaceChildren(
			h('p.muted', [read.kind, bytes(found.size_bytes), `QoS ${found.qos}`, found.publisher && `from ${found.publisher}`].filter(Boolean).join(' · ')),
			h('pre', { tabindex: 0, 'aria-label': 'Retained message' }, read.text || '(empty)'), remove)
	}

	/** Opens the path to the topic that the address names. */
	const reveal = async (topic) => {
		for (let node = null; ;) {
			node = [...(node?.group ?? tree).children].map((element) => nodes.get(element)).find((one) => one && `${topic}/`.startsWith(`${one.level.topic}/`))
			if (!node) return
			if (topic === node.level.topic) return choose(node)
			toggle(node, true)
			await readLevel(node)
		}
	}
	let wanted = asked.topic
	every(REFRESH, async () => {
		const expanded = [...tree.querySelectorAll('[aria-expanded=true]')].filter((element) => element.checkVisibility()).slice(0, REFRESHED_LEVELS)
		for (const element of [null, ...expanded]) await readLevel(nodes.get(element) ?? null)
		if (wanted) await reveal(wanted)
		wanted = null
	}, view)
}
