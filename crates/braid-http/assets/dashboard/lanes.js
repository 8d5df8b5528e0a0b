// Streams of a connection as lanes: a backlog on the left, packets that move between broker and client.

import { h, setAttribute, setText } from './dom.js'
import { bytes, bytesPerSecond, count, milliseconds, powerOfTwo } from './format.js'

const DEFAULT_PRIORITY = 100
const HEIGHT = 44
/** Dots in a second on the busiest lane, at most. */
const DOTS_PER_SECOND = 16
const SMALLEST_SCALE = 65536
const WAITS = {
	path: 'the path (congestion window)',
	gate: 'the congestion gate',
	flow_control: 'flow control of the client',
	socket: 'the socket',
	durability: 'the store',
	receive_maximum: 'acknowledgements (Receive Maximum)',
	resends: 'messages that are sent again',
	outbox: 'the messages before them',
	lane: 'a more urgent stream',
}

/** Word for a priority. */
export function band({ kind, priority }) {
	if (kind === 'control') return 'control'
	if (priority > DEFAULT_PRIORITY) return 'urgent'
	return priority < DEFAULT_PRIORITY ? 'bulk' : 'normal'
}

/** Order of sending: the control stream, the higher priority, the lower number. */
const order = (left, right) => (right.kind === 'control') - (left.kind === 'control') || right.priority - left.priority
	|| String(left.stream).localeCompare(right.stream, 'en', { numeric: true })

// === Packets ===

/** Dots of one direction of a lane. */
class Flow {
	rate = 0
	perSecond = 0
	credit = 0
	dots = []

	/** Takes the rate of the last interval. Less than a dot is shown as one small dot. */
	update(rate, bytesPerDot) {
		this.rate = rate
		this.perSecond = rate < bytesPerDot ? 0 : rate / bytesPerDot
		if (rate && !this.perSecond) this.dots.push({ x: 0, size: 2 })
	}

	/** Moves at 70 to 260 pixels in a second: a thousand times the rate is about three times as fast. */
	move(seconds, width) {
		const speed = 70 + 190 * Math.min(1, Math.log10(1 + this.rate / 1000) / 4)
		for (const dot of this.dots) dot.x += speed * seconds
		this.dots = this.dots.filter(({ x }) => x < width)
		this.credit = Math.min(3, this.credit + this.perSecond * seconds)
		while (this.credit >= 1) {
			this.credit -= 1
			this.dots.push({ x: 0, size: 4 })
		}
	}

	/** Dots at equal distances, for readers who want no motion. */
	spread(width) {
		const number = this.rate && Math.max(1, Math.round(this.perSecond))
		this.dots = Array.from({ length: number }, (_, at) => ({ x: ((at + 0.5) * width) / number, size: this.perSecond ? 4 : 2 }))
	}
}

/** One shape for each band, so that colour is not the only difference. */
const SHAPES = { urgent: [[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]], bulk: [[-1, -1], [1, -1], [1, 1], [-1, 1]], control: [[-1, -1], [1, 0], [-1, 1]] }
function shape(context, name, x, y, size) {
	context.beginPath()
	if (name === 'normal') context.arc(x, y, size, 0, 7)
	else for (const [right, down] of SHAPES[name]) context.lineTo(x + right * size, y + down * size)
	context.fill()
}

// === One lane ===

class Lane {
	visible = true
	flows = [new Flow(), new Flow()]
	canvas = h('canvas', { width: 0, 'aria-hidden': 'true' })
	name = h('h3')
	priority = h('span.priority')
	kind = h('span.muted')
	bar = h('span.fill')
	backlog = h('div.said')
	waits = h('span.waits')
	behind = h('button.link')
	rates = [h('span'), h('span')]

	constructor(stream) {
		this.element = h('li', { 'data-stream': stream },
			h('div.ident', this.name, this.priority, this.kind),
			h('div.waiting', h('div.queue', this.bar), this.backlog),
			h('div.barrier'),
			h('div.road', this.canvas, h('div.said', this.waits, this.behind)),
			h('div.rates', this.rates.map((text, at) => h('div', h('span.muted', at ? '← in' : '→ out'), text))))
	}

	/** Takes a sample and the one before; a full bar is `scale` bytes. */
	update(now, before, seconds, scale) {
		this.now = now
		this.band = band(now)
		setAttribute(this.element, 'class', `lane ${this.band}${now.waits_for ? ' blocked' : ''}`)
		const isControl = now.kind === 'control'
		setText(this.name, isControl ? 'Control' : `Stream ${now.stream}`)
		setText(this.priority, isControl ? 'first' : `${now.priority} ${this.band}`)
		setText(this.kind, { both: 'both directions', out: 'to the client', in: 'from the client' }[now.direction])
		this.sample = ['bytes_out', 'bytes_in'].map((key) => (before && seconds > 0 ? Math.max(0, (now[key] - before[key]) / seconds) : 0))
		this.sample.forEach((rate, at) => setText(this.rates[at], before ? bytesPerSecond(rate) : '–'))
		this.bar.style.width = `${Math.min(100, (now.backlog_bytes / scale) * 100)}%`
		setText(this.backlog, now.backlog_messages || now.backlog_bytes ? `${count(now.backlog_messages)} messages · ${bytes(now.backlog_bytes)} · oldest ${milliseconds(now.oldest_ms)}` : 'nothing waits')
		const isBehind = Boolean(now.waits_for) && now.behind !== null
		const reason = now.waits_for === 'lane' && isBehind ? '' : `${WAITS[now.waits_for] ?? now.waits_for} `
		setText(this.waits, now.waits_for ? `▮ waits for ${reason}` : now.unsent_bytes ? `${bytes(now.unsent_bytes)} handed over, not sent` : '')
		this.behind.hidden = !isBehind
		setText(this.behind, `${reason && 'behind '}stream ${now.behind}`)
	}

	setDots(bytesPerDot) {
		this.flows.forEach((flow, at) => flow.update(this.sample[at], bytesPerDot))
	}

	/** Draws the packets; `seconds` is the time since the last frame, or null without motion. */
	draw(seconds, inks) {
		const { canvas, width } = this
		if (!width) return
		const ratio = devicePixelRatio
		if (canvas.width !== Math.round(width * ratio)) {
			canvas.width = Math.round(width * ratio)
			canvas.height = Math.round(HEIGHT * ratio)
		}
		const context = canvas.getContext('2d')
		context.setTransform(ratio, 0, 0, ratio, 0, 0)
		context.clearRect(0, 0, width, HEIGHT)
		context.fillStyle = inks.line
		for (let x = 4; x < width; x += 18) context.fillRect(x, HEIGHT / 2 - 0.5, 8, 1)
		context.fillStyle = inks[this.band]
		this.flows.forEach((flow, isIn) => {
			if (seconds === null) flow.spread(width)
			else flow.move(seconds, width)
			for (const { x, size } of flow.dots) shape(context, this.band, isIn ? width - x : x, HEIGHT * (isIn ? 0.73 : 0.27), size)
		})
	}
}

// === All lanes ===

/** Lanes; `update(sample)` takes an answer of `streams`. */
export function lanes(signal) {
	const list = h('ol')
	const links = h('svg.links', { 'aria-hidden': 'true' })
	const legend = h('p.muted.legend-text')
	const titles = h('div.lane.lane-titles', { 'aria-hidden': 'true' }, h('span', 'Stream and priority'), h('span.waiting', 'Waits at the broker'), h('span'),
		h('span.ends', h('span', 'Broker'), h('span', 'Client')), h('span', 'Rate'))
	const element = h('div', titles, h('div.lanes-body', links, list), legend)
	const byStream = new Map()
	const motion = matchMedia('(prefers-reduced-motion: reduce)')
	let before = null
	let scale = SMALLEST_SCALE
	let inks = null

	const observer = new IntersectionObserver((entries) => {
		for (const { target, isIntersecting } of entries) {
			const lane = byStream.get(target.dataset.stream)
			if (lane) lane.visible = isIntersecting
		}
	})
	const sizes = new ResizeObserver((entries) => {
		for (const { target, contentRect } of entries) {
			const lane = byStream.get(target.closest('.lane')?.dataset.stream)
			if (lane) lane.width = contentRect.width
		}
		drawLinks()
	})
	const colours = () => {
		const probe = h('i')
		element.append(probe)
		inks = Object.fromEntries(['control', 'urgent', 'normal', 'bulk', 'line'].map((name) => {
			probe.style.color = `var(--${name})`
			return [name, getComputedStyle(probe).color]
		}))
		probe.remove()
	}

	/** Draws a bracket from every lane that waits to the lane before it. */
	const drawLinks = () => {
		const middle = (lane) => lane.element.offsetTop + 22
		links.style.height = `${list.offsetHeight}px`
		const pairs = [...byStream.values()].map((lane) => [lane, lane.now.waits_for && byStream.get(String(lane.now.behind))]).filter(([, first]) => first)
		links.replaceChildren(...pairs.map(([lane, first], at) => {
			const to = middle(first)
			return h('path', { d: `M26 ${middle(lane)}H${4 + (at % 3) * 5}V${to}H22M18 ${to - 4}l5 4-5 4` })
		}))
	}

	let last = performance.now()
	const frame = (now) => {
		if (signal.aborted) return
		const seconds = Math.min(0.1, (now - last) / 1000)
		last = now
		if (!motion.matches) for (const lane of byStream.values()) if (lane.visible) lane.draw(seconds, inks)
		requestAnimationFrame(frame)
	}

	const update = (sample) => {
		if (!inks) colours()
		const seconds = before ? sample.at - before.at : 0
		const earlier = new Map(before?.streams.map((one) => [String(one.stream), one]))
		const sorted = [...sample.streams].sort(order)
		const largest = Math.max(0, ...sorted.map((one) => one.backlog_bytes))
		// The scale grows at once, and shrinks when the bars would stay below an eighth of it.
		const fitting = Math.max(SMALLEST_SCALE, powerOfTwo(largest))
		if (fitting > scale || fitting < scale / 8) scale = fitting
		const present = new Set(sorted.map((one) => String(one.stream)))
		for (const [key, lane] of byStream) {
			if (present.has(key)) continue
			observer.unobserve(lane.element)
			sizes.unobserve(lane.canvas)
			lane.element.remove()
			byStream.delete(key)
		}
		sorted.forEach((one, at) => {
			const key = String(one.stream)
			let lane = byStream.get(key)
			if (!lane) {
				lane = new Lane(one.stream)
				byStream.set(key, lane)
				lane.behind.addEventListener('click', () => point(String(lane.now.behind)))
			}
			lane.update(one, earlier.get(key), seconds, scale)
			if (list.children[at] !== lane.element) {
				list.insertBefore(lane.element, list.children[at] ?? null)
				observer.observe(lane.element)
				sizes.observe(lane.canvas)
			}
		})
		const busiest = Math.max(0, ...[...byStream.values()].flatMap(({ sample: rates }) => rates))
		const bytesPerDot = Math.max(256, powerOfTwo(busiest / DOTS_PER_SECOND))
		for (const lane of byStream.values()) {
			lane.setDots(bytesPerDot)
			if (motion.matches) lane.draw(null, inks)
		}
		setText(legend, `One large dot is ${bytes(bytesPerDot)}, a small one less. A full bar is ${bytes(scale)}. ◆ urgent ● normal ■ bulk ▶ control. A closed lane (▮) waits; a bracket leads to the stream that goes first.`)
		drawLinks()
		before = sample
	}

	/** Moves the focus to a lane. */
	const point = (key) => {
		const lane = byStream.get(key)
		if (!lane) return
		lane.element.tabIndex = -1
		lane.element.focus()
		lane.element.scrollIntoView({ block: 'nearest', behavior: motion.matches ? 'auto' : 'smooth' })
	}

	document.addEventListener('theme', colours, { signal })
	matchMedia('(prefers-color-scheme: dark)').addEventListener('change', colours, { signal })
	signal.addEventListener('abort', () => {
		observer.disconnect()
		sizes.disconnect()
	})
	requestAnimationFrame(frame)
	return { element, update }
}
