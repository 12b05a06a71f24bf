// The page works without this script. The script adds live updates, running clocks,
// keyboard shortcuts and following of output.
'use strict'
const $ = (q, e = document) => e.querySelector(q), $$ = (q, e = document) => [...e.querySelectorAll(q)]
const say = t => { $('#say').textContent = t }
const root = document.documentElement

// Clocks start from the server's time, so a wrong clock in the browser does not matter.
const t0 = performance.now(), since = e => (performance.now() - (e.t0 ?? t0)) / 1000 // e.t0: when the fragment arrived
const two = n => String(n).padStart(2, '0')
// age formats a number of seconds like the function AgeText of the package present.
const pair = (s, a, large, b, small) => { const n = Math.floor(s / a), rest = Math.floor(s % a / b); return n + large + (rest && n < 10 ? two(rest) + small : '') }
const age = s => s < 60 ? Math.floor(s) + 's' : s < 3600 ? pair(s, 60, 'm', 1, 's') : s < 172800 ? pair(s, 3600, 'h', 60, '') : pair(s, 86400, 'd', 3600, 'h').replace('d0', 'd')
let frozen = root.classList.contains('stale')
setInterval(() => {
  if (frozen || document.hidden) return
  for (const t of $$('time[data-s]')) { const v = age(+t.dataset.s + since(t)); if (t.textContent !== v) t.textContent = v }
}, 1000)

// Live updates: the server sends whole fragments by id, at most one set per second. A
// fragment that the user is using (focus, checked rows, pointer on a table) is marked
// as held and replaced later.
const held = new Map()
const busy = e => e.contains(document.activeElement) || e.matches(':hover') && $('table', e) || $('tbody input:checked', e)
function put(id, html, came = performance.now()) {
  const e = document.getElementById(id)
  if (!e) return
  if (frozen || busy(e)) { held.set(id, [html, came]); e.dataset.held = ''; return }
  held.delete(id); delete e.dataset.held
  if (e.outerHTML !== html) { e.outerHTML = html; $$('time[data-s]', document.getElementById(id)).forEach(t => { t.t0 = came }) }
}
setInterval(() => { for (const [id, [html, came]] of [...held]) put(id, html, came) }, 500)
const live = $('#live')
if (live && root.dataset.live) { // otherwise the page is not updated
  live.setAttribute('role', 'button')
  const show = () => { live.textContent = frozen ? 'paused' : 'live'; live.classList.toggle('on', !frozen); live.setAttribute('aria-pressed', String(frozen)); live.title = frozen ? 'Resume updates' : 'Pause updates' }
  live.onclick = e => { e.preventDefault(); frozen = !frozen; show() }
  live.onkeydown = e => { if (e.key === ' ') { e.preventDefault(); live.click() } }
  show()
}
// Without a connection, the page shows when it was lost, in the server's time.
const heard = at => { const [h, m, s] = $('#gone').dataset.at.split(':').map(Number), t = (h * 3600 + m * 60 + s + Math.floor((at - t0) / 1000)) % 86400; return [t / 3600, t % 3600 / 60, t % 60].map(n => two(Math.floor(n))).join(':') }
const gone = (v, at) => { const b = $('#gone'); if (b.hidden !== v) return; if (v) $('span', b).textContent = heard(at); b.hidden = !v; root.classList.toggle('stale', v); say(v ? 'No answer from the service' : 'Connected again') }
const over = text => { $('#gone').hidden = false; root.classList.add('stale'); $('#gone p').textContent = text; say(text) }
const url = root.dataset.live // absent if the page is not updated
if (url) {
  let wait = 1, last = performance.now(), es, again, ended
  const on = { fragments: m => { for (const id in m) put(id, m[id]) }, output: m => m.forEach(lineOf), tick: () => {} }
  const open = () => {
    clearTimeout(again)
    if (es) es.close()
    es = new EventSource(url)
    for (const k in on) es.addEventListener(k, e => { last = performance.now(); wait = 1; gone(false); on[k](JSON.parse(e.data)) })
    es.onerror = async () => {
      es.close(); wait = Math.min(30, wait * 2)
      const stop = new AbortController(), status = await fetch(url, { signal: stop.signal }).then(r => r.status, () => 0)
      stop.abort() // only for the status: an EventSource does not report why it ended
      if (status === 401) { ended = true; over('The session has ended, for example because the service restarted. Get a new link with: queuectl web open') }
      else if (status === 404) { ended = true; over('This job no longer exists.') }
      else if (!document.hidden) again = setTimeout(open, wait * (500 + Math.random() * 500))
    }
  }
  setInterval(() => { if (!ended && performance.now() - last > 15000 && !document.hidden) gone(true, last) }, 1000)
  document.addEventListener('visibilitychange', () => { es.close(); last = performance.now(); if (!document.hidden && !ended) open() })
  open()
}
function lineOf({ at, err, runs, dropped, first, part }) {
  if (!log) return
  if (first) log.replaceChildren() // this batch replaces all lines
  log.querySelector('.part')?.remove() // an unfinished line is replaced
  if (part && !runs) return
  // Job output is untrusted: use textContent, never innerHTML.
  const el = (n, t, c) => { const e = document.createElement(n); e.textContent = t; if (c) e.className = c; return e }
  const p = el('p', '', dropped ? 'gap' : part ? 'part' : err ? 'e' : ''), span = el('span', dropped || '')
  if (!dropped) { p.append(el('time', at), el('i', err ? 'err' : 'out')); for (const [t, c] of runs || []) span.append(el('b', t, c && 'a' + c)) }
  p.append(span); log.append(p)
}

// Selection
document.addEventListener('change', e => { // on document, since an update may replace the list
  const all = $('#all')
  if (!all || !all.closest('form').contains(e.target)) return
  const boxes = $$('tbody input[type=checkbox]', all.closest('form'))
  if (e.target === all) boxes.forEach(b => b.checked = all.checked)
  const n = boxes.filter(b => b.checked).length
  all.checked = n === boxes.length; all.indeterminate = n > 0 && n < boxes.length
  say(n + ' selected')
})
const dense = $('#dense'), setDense = v => { document.body.classList.toggle('dense', v); dense.textContent = v ? 'Comfortable' : 'Compact' }
if (dense) { dense.setAttribute('role', 'button'); dense.onclick = e => { e.preventDefault(); const v = !document.body.classList.contains('dense'); localStorage.dense = v ? 1 : ''; setDense(v) }; setDense(!!localStorage.dense) }

// Output: following scrolls to the end until the user scrolls up.
const log = $('#log'), follow = $('#follow')
if (log && follow) {
  follow.parentNode.hidden = false
  const end = () => { log.scrollTop = log.scrollHeight }
  follow.onchange = () => { if (follow.checked) end(); say(follow.checked ? 'Following' : 'Not following') }
  log.onscroll = () => { follow.checked = log.scrollTop + log.clientHeight > log.scrollHeight - 24 }
  new MutationObserver(() => { while (log.children.length > 5000) log.firstChild.remove(); if (follow.checked) end() }).observe(log, { childList: true })
  end()
  const times = $('#times'), sec = s => s.split(':').reduce((a, x) => a * 60 + +x, 0)
  times.onchange = () => {
    document.body.classList.toggle('nt', times.selectedIndex === 2)
    const all = $$('time', log); all.forEach(t => { t.dataset.at ||= t.textContent })
    all.forEach(t => { t.textContent = times.selectedIndex === 1 ? '+' + (sec(t.dataset.at) - sec(all[0].dataset.at)).toFixed(3) : t.dataset.at })
  }
  new MutationObserver(() => times.selectedIndex === 1 && times.onchange()).observe(log, { childList: true })
}

// Keyboard shortcuts: inactive while typing in a field, and they can be turned off.
const keys = $('#keyson')
keys.checked = localStorage.keys !== 'off'
keys.onchange = () => { localStorage.keys = keys.checked ? '' : 'off' }
let g = 0
document.addEventListener('keydown', e => {
  if (!keys.checked || e.ctrlKey || e.metaKey || e.altKey || e.target.closest('input:not([type=checkbox]),select,textarea') && e.key !== 'Escape') return
  const go = q => { const a = $(q); if (a) a.click() }
  if (g && Date.now() - g < 1500) { g = 0; const n = 'ojdswf'.indexOf(e.key); if (n >= 0) go('.top nav li:nth-child(' + (n + 1) + ') a'); return }
  const rows = $$('main tbody a').filter((a, i, l) => a.offsetParent && (i === 0 || a.closest('tr') !== l[i - 1].closest('tr')))
  const cur = rows.findIndex(a => a.closest('tr').contains(document.activeElement))
  switch (e.key) {
    case 'g': g = Date.now(); break
    case '/': e.preventDefault(); ($('.filter input') || $('.top input')).focus(); break
    case 'j': if (rows[cur + 1]) rows[cur + 1].focus(); break
    case 'k': if (rows[cur - 1]) rows[cur - 1].focus(); break
    case 'x': if (cur >= 0) { const b = $('input[type=checkbox]', rows[cur].closest('tr')); if (b) b.click() } break
    case 'f': if (follow) follow.click(); break
    case 'p': go('#live'); break
    case '?': $('#keys').open = true; $('#keys summary').focus(); break
    case 'Escape': document.activeElement.blur(); break
  }
})
