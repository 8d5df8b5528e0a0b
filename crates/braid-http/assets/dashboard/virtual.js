// Virtual list over a paged collection: rows on screen only, pages loaded by cursor as they are needed.

import { get, query } from './api.js'
import { h, setAttribute, setText, uniqueId } from './dom.js'

const ROW = 34
const OVERSCAN = 8
const PAGE = 500

/**
 * Grid of the items of `path`. A column is [label, class, text(item)]; the first one is a link. Keys choose a row and open it.
 * `filter()` gives the query. `onCount(count, isMore)` is told the number of items, or of those that were read while the
 * broker does not count all. Returns {element, reload, refresh, stop}.
 */
export function virtualList(label, path, columns, { filter, href, onCount }) {
	const id = uniqueId('grid')
	const header = h('div.vrow.vhead', { role: 'row', 'aria-rowindex': 1 }, columns.map(([name, css]) => h('div', { role: 'columnheader', class: css }, name)))
	const rows = h('div.vrows', { role: 'rowgroup' })
	const element = h('div.vlist', { role: 'grid', tabindex: 0, 'aria-label': label, 'aria-readonly': 'true' }, h('div.vtop', { role: 'rowgroup' }, header), rows)
	const pool = []
	let items = []
	/** Pages in order: {start, count, cursor, next}; `cursor` is the one that they were asked with. */
	let pages = []
	let total = 0
	let active = 0
	let loading = null
	let generation = new AbortController()
	let failed = null

	/** Rows on screen: the first one, and the one behind the last. */
	const onScreen = () => {
		const first = Math.floor(element.scrollTop / ROW)
		return [first, first + Math.ceil(element.clientHeight / ROW)]
	}
	const visible = () => {
		const [first, end] = onScreen()
		return [Math.max(0, first - OVERSCAN), Math.min(total, end + OVERSCAN)]
	}

	const makeRow = (at) => {
		const link = h('a', { tabindex: -1 })
		const cells = columns.map(([, css], column) => h('div', { role: 'gridcell', class: css }, column === 0 && link))
		const row = h('div.vrow', { role: 'row', id: `${id}-${at}` }, cells)
		rows.append(row)
		return { row, link, texts: [link, ...cells.slice(1)], index: -1 }
	}

	const draw = () => {
		const [first, end] = visible()
		// The pool is a ring: an index keeps its row while it is on screen.
		while (pool.length < end - first) pool.push(makeRow(pool.length))
		const shown = new Set()
		for (let index = first; index < end; index += 1) {
			const entry = pool[index % pool.length]
			const item = items[index]
			shown.add(entry)
			if (entry.index !== index) {
				entry.index = index
				entry.row.style.transform = `translateY(${index * ROW}px)`
				setAttribute(entry.row, 'aria-rowindex', String(index + 2))
			}
			setAttribute(entry.row, 'aria-selected', String(index === active))
			columns.forEach(([, , text], column) => setText(entry.texts[column], item ? text(item) : column ? '' : 'loading …'))
			setAttribute(entry.link, 'href', item ? href(item) : null)
		}
		for (const entry of pool) {
			entry.row.hidden = !shown.has(entry)
			if (entry.row.hidden) entry.index = -1
		}
		const chosen = pool.find(({ index }) => index === active)
		setAttribute(element, 'aria-activedescendant', chosen ? chosen.row.id : null)
		if (end > items.length && items.length < total && !failed) load()
	}

	const fetchPage = (cursor) => get(path + query({ ...filter(), limit: PAGE, cursor }), generation.signal)

	const resize = (page) => {
		// Where the broker does not count, a row more stands for those behind the last page that was read.
		const isOpen = page.cursor !== null && page.total === null && pages.at(-1).next !== null
		if (page.cursor === null) total = items.length
		else if (page.total === null) total = items.length + Number(isOpen)
		else total = Math.max(page.total, items.length)
		rows.style.height = `${total * ROW}px`
		setAttribute(element, 'aria-rowcount', String(isOpen ? -1 : total + 1))
		active = Math.max(0, Math.min(active, total - 1))
		onCount(isOpen ? items.length : total, isOpen)
	}

	/** Loads page after page until the rows on screen are there. */
	const load = () => {
		const own = generation
		loading ??= (async () => {
			for (;;) {
				const missing = visible()[1] - items.length
				const last = pages.at(-1)
				if (last && (missing <= 0 || last.next === null)) break
				const cursor = last?.next ?? null
				const page = await fetchPage(cursor)
				if (own !== generation) return
				pages.push({ start: items.length, count: page.items.length, cursor, next: page.cursor })
				items.push(...page.items)
				resize(page)
				requestAnimationFrame(draw)
			}
		})().catch((error) => {
			if (own === generation && error.name !== 'AbortError') failed = error
		}).finally(() => {
			if (own === generation) loading = null
		})
		return loading
	}

	/** Reads the pages on screen again. */
	const refresh = async () => {
		if (!pages.length) return reload()
		if (failed) {
			failed = null
			await load()
			if (failed) throw failed
		}
		const own = generation
		const [first, end] = onScreen()
		// Those at the border too: a page may be empty, and a list without items has no height.
		for (const page of pages.filter(({ start, count }) => start <= end && start + count >= first)) {
			const answer = await fetchPage(page.cursor)
			if (own !== generation || !pages.includes(page)) return
			items.splice(page.start, page.count, ...answer.items)
			if (answer.cursor !== page.next || answer.items.length !== page.count) {
				// Clients came or went: the pages behind this one begin elsewhere now.
				pages = pages.slice(0, pages.indexOf(page) + 1)
				items.length = page.start + answer.items.length
			}
			page.count = answer.items.length
			page.next = answer.cursor
			resize(answer)
			draw()
		}
	}

	/** Begins anew, after a change of the filter. */
	const reload = async () => {
		generation.abort()
		generation = new AbortController()
		items = []
		pages = []
		failed = null
		loading = null
		active = 0
		element.scrollTop = 0
		await load()
		draw()
		if (failed) throw failed
	}

	const choose = (index) => {
		active = Math.max(0, Math.min(total - 1, index))
		const [top, bottom] = [active * ROW, (active + 1) * ROW]
		const height = element.clientHeight - header.offsetHeight
		if (top < element.scrollTop) element.scrollTop = top
		else if (bottom > element.scrollTop + height) element.scrollTop = bottom - height
		draw()
	}
	const open = (index) => {
		if (items[index]) location.hash = href(items[index])
	}
	let drawing = false
	element.addEventListener('scroll', () => {
		if (drawing) return
		drawing = true
		requestAnimationFrame(() => {
			drawing = false
			draw()
		})
	}, { passive: true })
	element.addEventListener('keydown', (event) => {
		const page = Math.max(1, Math.floor(element.clientHeight / ROW) - 2)
		const to = { ArrowDown: active + 1, ArrowUp: active - 1, PageDown: active + page, PageUp: active - page, Home: 0, End: total - 1 }[event.key]
		if (to !== undefined) choose(to)
		else if (event.key === 'Enter') open(active)
		else return
		event.preventDefault()
	})
	rows.addEventListener('click', (event) => {
		const entry = pool.find(({ row }) => row.contains(event.target))
		if (!entry || event.target.closest('a') || String(getSelection())) return
		choose(entry.index)
		open(entry.index)
	})
	new ResizeObserver(draw).observe(element)
	return { element, reload, refresh, stop: () => generation.abort() }
}
