// Elements, dialogs and tables. Text of the network enters the page as text nodes and attribute values only.

import { count } from './format.js'

const SVG = 'http://www.w3.org/2000/svg'
const SVG_TAGS = new Set(['svg', 'path', 'line', 'g', 'use', 'rect', 'circle'])

/** Makes `tag.class.class`. Attributes may be left out; those that are null or false are not set; functions listen. */
export function h(selector, attributes, ...children) {
	const [tag, ...classes] = selector.split('.')
	const element = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag)
	if (classes.length) element.setAttribute('class', classes.join(' '))
	if (Object.getPrototypeOf(attributes ?? 0) !== Object.prototype) children.unshift(attributes)
	else for (const [name, value] of Object.entries(attributes)) {
		if (typeof value === 'function') element.addEventListener(name, value)
		else if (value || value === 0 || value === '') element.setAttribute(name, value === true ? '' : value)
	}
	element.append(...children.flat(2).filter((child) => child || child === 0 || child === ''))
	return element
}

/** Writes a text only if it differs, which saves layout. */
export function setText(element, text) {
	if (element.textContent !== text) element.textContent = text
}

/** The same for an attribute; null removes it. */
export function setAttribute(element, name, value) {
	if (value === null) element.removeAttribute(name)
	else if (element.getAttribute(name) !== value) element.setAttribute(name, value)
}

let serial = 0
export const uniqueId = (name) => `${name}-${(serial += 1)}`

/** Section with a heading; `aside` stands beside it, and may be null. */
export function card(title, aside, ...children) {
	const id = uniqueId('card')
	return h('section.card', { 'aria-labelledby': id }, h('div.card-head', h('h2', { id }, title), aside), ...children)
}

export function field(label, control) {
	control.id ||= uniqueId('field')
	return h('div.field', h('label', { for: control.id }, label), control)
}

/** `<select>` of [value, label] pairs. */
export const select = (options) => h('select', options.map(([value, label]) => h('option', { value }, label)))

/** Line in place of an empty list. */
export const empty = (text, hint) => h('div.empty', h('p', text), hint && h('p.muted', hint))

/** Puts an element on top of a bounded list. */
export function prepend(list, element, limit) {
	list.prepend(element)
	while (list.children.length > limit) list.lastChild.remove()
}

/** Definition list; `set(values)` in the order of the labels. */
export function facts(labels) {
	const values = labels.map(() => h('dd', '–'))
	const element = h('dl.facts', labels.map((label, at) => h('div', h('dt', label), values[at])))
	const set = (texts) => texts.forEach((text, at) => setText(values[at], String(text ?? '–')))
	return { element, set }
}

// === Dialogs ===

/** Opens a dialog; true if `label` was chosen. */
export function modal(title, body, label, kind = 'primary') {
	const id = uniqueId('dialog')
	const cancel = h('button', { type: 'button', click: () => dialog.close('') }, 'Cancel')
	const dialog = h('dialog', { 'aria-labelledby': id },
		h('form', { method: 'dialog' }, h('h2', { id }, title), body, h('div.actions', cancel, h('button', { class: kind, value: 'yes' }, label))))
	return new Promise((resolve) => {
		dialog.addEventListener('close', () => {
			dialog.remove()
			resolve(dialog.returnValue === 'yes')
		})
		document.body.append(dialog)
		dialog.showModal()
	})
}

/** Asks before an action that cannot be undone. */
export const confirm = (title, text, label) => modal(title, h('p', text), label, 'danger')

/** Shows and announces a result. */
export function notify(text) {
	const notice = h('p', text)
	document.getElementById('notices').append(notice)
	setTimeout(() => notice.remove(), 6000)
}

/** Table of few rows. A column is [label, cell(row) -> text or node, class]; `set(rows)` writes the rows. */
export function table(label, columns, nothing) {
	const body = h('tbody')
	const line = (tag, attributes, cell) => h('tr', columns.map((column) => h(tag, { ...attributes, class: column[2] }, cell(column))))
	const region = h('div.scroll', { tabindex: 0, role: 'group', 'aria-label': label },
		h('table', h('caption.hidden', label), h('thead', line('th', { scope: 'col' }, ([label]) => label)), body))
	const none = empty(nothing)
	none.hidden = true
	const more = h('p.muted')
	let before
	/** Shows a page of `total` rows. */
	const set = (rows, total = rows.length) => {
		setText(more, total > rows.length ? `The first ${count(rows.length)} of ${count(total)}.` : '')
		more.hidden = total <= rows.length
		const now = JSON.stringify(rows)
		if (now === before) return
		before = now
		const at = [...body.rows].findIndex((row) => row.contains(document.activeElement))
		body.replaceChildren(...rows.map((row) => line('td', {}, ([, cell]) => cell(row) ?? '–')))
		// The focus goes on to the row at the same place.
		if (at >= 0) (body.rows[Math.min(at, rows.length - 1)]?.querySelector('button') ?? document.getElementById('main')).focus()
		none.hidden = rows.length > 0
		region.hidden = rows.length === 0
	}
	return { element: h('div', region, none, more), set }
}
