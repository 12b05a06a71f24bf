package dashboard

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/control/fair"
	"github.com/queuectl/queuectl/queue"
)

// These constants are the timing and the limits of live pages, which update themselves in the browser. The
// server renders such a page every pollInterval and soon after an event, but at most once per renderInterval.
// Each reader gets an event named tick every tickInterval. New output is sent every outputInterval, in batches
// of about maxOutputBytes bytes. See docs/decisions/0084.
const (
	renderInterval   = time.Second
	pollInterval     = 5 * time.Second
	tickInterval     = 5 * time.Second
	outputInterval   = 250 * time.Millisecond
	maxOutputBytes   = 64 << 10
	maxUserReaders   = 600 // maximum number of streams of one user on all pages
	maxUserLivePages = 64  // maximum number of pages that are updated for one user
)

// livePages updates the pages that browsers show. A reader is a browser that shows a page. If a user has several
// readers of the same page, they share one rendering. The methods are safe for concurrent use.
type livePages struct {
	readerLimiter, pageLimiter *fair.Limiter // limit the readers and the pages of each user

	mu         sync.Mutex
	pagesByKey map[string]*livePage // guarded by mu
}

func newLivePages() *livePages {
	return &livePages{readerLimiter: fair.NewLimiter(fair.Bound{Max: maxUserReaders}),
		pageLimiter: fair.NewLimiter(fair.Bound{Max: maxUserLivePages}), pagesByKey: map[string]*livePage{}}
}

// livePage is one page as one user sees it, with the readers of the page.
type livePage struct {
	uid       int
	lastFrame *encodedParts // all parts, as last rendered; guarded by livePages.mu
	// lastParts contains the parts of lastFrame without ages, which the browser updates itself. New parts are
	// compared with it to find the changed ones. lastParts and the fields below are guarded by livePages.mu.
	lastParts     map[string]string
	readers       map[*pageReader]bool
	isClosed      bool // the readers must disconnect
	stopRendering context.CancelFunc
}

// pageReader is the event stream of one browser. If newer parts are rendered before the browser has received
// the old ones, only the newer ones are sent.
type pageReader struct {
	unsentParts *encodedParts // parts to send; guarded by livePages.mu
	wake        chan struct{} // receives a value when there are unsent parts or the page is closed
}

// encodedParts contains rendered parts of a page. Readers that need the same parts share the encoded bytes.
type encodedParts struct {
	parts      map[string]string // HTML by name of the part
	eventBytes func() []byte     // returns the parts as a server-sent event, encoded once
}

func newEncodedParts(parts map[string]string) *encodedParts {
	return &encodedParts{parts, sync.OnceValue(func() []byte { return encodeEvent("fragments", parts) })}
}

// merge returns a copy of p in which newer parts replace older ones.
func (p *encodedParts) merge(newer *encodedParts) *encodedParts {
	if p == nil {
		return newer
	}
	parts := maps.Clone(p.parts)
	maps.Copy(parts, newer.parts)
	return newEncodedParts(parts)
}

// addReader adds a reader to the page with the given key. For the first reader of the page, it calls renderLoop in a
// new goroutine.
func (p *livePages) addReader(uid int, pageKey string, renderLoop func(context.Context, *livePage)) (
	*pageReader, *livePage, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	user := fair.Request{User: uid}
	if !p.readerLimiter.TryAcquire(user) {
		return nil, nil, queue.Errorf(queue.CodeUnavailable,
			"you have %d windows of the page open, the limit for one user; close one", maxUserReaders)
	}
	page := p.pagesByKey[pageKey]
	if page == nil {
		if !p.pageLimiter.TryAcquire(user) {
			p.readerLimiter.Release(user)
			return nil, nil, queue.Errorf(queue.CodeUnavailable,
				"you have %d different pages open, the limit for live updates; close one", maxUserLivePages)
		}
		ctx, cancel := context.WithCancel(context.Background())
		page = &livePage{uid: uid, readers: map[*pageReader]bool{}, stopRendering: cancel}
		p.pagesByKey[pageKey] = page
		go renderLoop(ctx, page) // this goroutine ends after the last reader has left
	}
	r := &pageReader{wake: make(chan struct{}, 1), unsentParts: page.lastFrame}
	if r.unsentParts != nil {
		r.wake <- struct{}{}
	}
	page.readers[r] = true
	return r, page, nil
}

// removeReader removes a reader. The last reader ends the render loop of the page.
func (p *livePages) removeReader(uid int, pageKey string, page *livePage, r *pageReader) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(page.readers, r)
	p.readerLimiter.Release(fair.Request{User: uid})
	if len(page.readers) == 0 {
		page.stopRendering()
		p.removePageLocked(pageKey, page)
	}
}

// removePageLocked removes a page from pagesByKey. It does nothing if the page was removed before. The caller holds
// mu.
func (p *livePages) removePageLocked(pageKey string, page *livePage) {
	if p.pagesByKey[pageKey] == page {
		delete(p.pagesByKey, pageKey)
		p.pageLimiter.Release(fair.Request{User: page.uid})
	}
}

// ageElements matches the elements that show ages. If nothing has changed, two renderings of a page differ only
// in these elements.
var ageElements = regexp.MustCompile(`<time data-s="\d+">[^<]*</time>`)

// publish sends the changed parts of a page to the readers of the page.
func (p *livePages) publish(page *livePage, parts map[string]string) {
	plain := map[string]string{}
	for name, html := range parts {
		plain[name] = ageElements.ReplaceAllString(html, "")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	changed := newEncodedParts(map[string]string{})
	for name, html := range parts {
		if page.lastParts[name] != plain[name] {
			changed.parts[name] = html
		}
	}
	page.lastFrame, page.lastParts = newEncodedParts(parts), plain
	if len(changed.parts) == 0 {
		return
	}
	for r := range page.readers {
		r.unsentParts = r.unsentParts.merge(changed)
		queue.TrySend(r.wake, struct{}{})
	}
}

// disconnectReaders disconnects all readers of a page. A browser that connects again starts a new render loop.
func (p *livePages) disconnectReaders(pageKey string, page *livePage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	page.isClosed = true
	p.removePageLocked(pageKey, page)
	for r := range page.readers {
		queue.TrySend(r.wake, struct{}{})
	}
}

// takeUnsent returns the parts that must be sent to a reader, and whether the reader must
// disconnect.
func (p *livePages) takeUnsent(page *livePage, r *pageReader) (unsent *encodedParts, mustDisconnect bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	unsent, r.unsentParts = r.unsentParts, nil
	return unsent, page.isClosed
}

// viewForPath returns the view of the page at a path. It returns nil if there is no page.
func viewForPath(path string) *view {
	switch {
	case path == "/":
		return views["/{$}"]
	case strings.HasPrefix(path, "/jobs/"), path == "/job":
		return views["/jobs/{id...}"]
	}
	return views[path]
}

// actionResultParams lists the query parameters that only describe the result of the last action.
var actionResultParams = []string{"did", "n"}

// serveLive keeps a page up to date with server-sent events. It sends the changed parts of the page, the output
// lines of its job, and a tick every tickInterval.
func (s *Server) serveLive(w http.ResponseWriter, r *http.Request, v *visitor) error {
	r, end := cancelOnClose(r)
	defer end()
	u, err := url.ParseRequestURI(r.URL.Query().Get("page"))
	if err != nil {
		return queue.Invalid("page", "must be the path of a page, like /jobs")
	}
	view := viewForPath(u.Path)
	if view == nil {
		return noPageError(u.Path)
	}
	if err := view.checkQuery(u); err != nil {
		return err
	}
	q := url.Values{}
	for _, name := range view.queryParams {
		if value := u.Query().Get(name); value != "" && !slices.Contains(actionResultParams, name) {
			// Readers of pages that differ only in actionResultParams share one livePage.
			q.Set(name, value)
		}
	}
	u = &url.URL{Path: u.Path, RawQuery: q.Encode()}
	current, err := view.buildPage(r.Context(), v, u)
	if err != nil {
		return err // a request for the page gets the same error
	}
	key := fmt.Sprintf("%d %s %s", v.peer.UID, v.token, u.RequestURI())
	reader, page, err := s.livePages.addReader(v.peer.UID, key, func(ctx context.Context, f *livePage) {
		if !s.renderLoop(ctx, *v, current.Right, view, u, f) {
			s.livePages.disconnectReaders(key, f)
		}
	})
	if err != nil {
		return err
	}
	defer s.livePages.removeReader(v.peer.UID, key, page, reader)
	// Close the client's connection. The client reconnects when needed. Open connections use memory and make
	// the service raise GOMAXPROCS.
	v.client.Close()
	out := &eventStream{w: w, controller: http.NewResponseController(w), conn: connOf(r.Context())}
	lines := make(chan []line)
	if view == views["/jobs/{id...}"] {
		go s.sendOutput(r.Context(), *v, jobIDOf(u), lines)
	}
	tick := time.NewTicker(tickInterval)
	defer tick.Stop()
	for err = out.send("tick", nil); err == nil; {
		select {
		case <-reader.wake:
			unsent, ended := s.livePages.takeUnsent(page, reader)
			if ended {
				return nil
			}
			if unsent != nil {
				err = out.write(unsent.eventBytes())
			}
		case list := <-lines:
			err = out.send("output", list)
		case <-tick.C:
			if !s.isSignedIn(r, v) || !current.stillExists(r.Context(), v) {
				return nil
			}
			v.client.Close()
			err = out.send("tick", nil)
		case <-r.Context().Done():
			return nil
		}
	}
	return nil // the reader has disconnected
}

// mayStreamContinue reports whether a stream may continue: the session is valid and the user's right has not changed.
// If not, the browser reconnects, and the server checks the rights again.
func (s *Server) mayStreamContinue(r *http.Request, v *visitor, right control.Right) bool {
	if !s.isSignedIn(r, v) {
		return false
	}
	who, err := v.client.Whoami(r.Context(), control.NoParams{})
	return err == nil && who.Right == right
}

// isSignedIn reports whether the session that opened a stream is still valid.
func (s *Server) isSignedIn(r *http.Request, v *visitor) bool {
	now, found := s.findVisitor(r)
	return found && now.token == v.token
}

// eventStream writes server-sent events to one browser.
type eventStream struct {
	w          http.ResponseWriter
	controller *http.ResponseController
	conn       *pageConn
}

// send sends one event. It returns an error if the browser accepts no data for sendTimeout.
func (e *eventStream) send(eventName string, v any) error { return e.write(encodeEvent(eventName, v)) }

// encodeEvent encodes a server-sent event.
func encodeEvent(eventName string, v any) []byte {
	var raw bytes.Buffer
	raw.WriteString("event: " + eventName + "\ndata: ")
	text := json.NewEncoder(&raw)
	text.SetEscapeHTML(false) // escapes would double the size of the parts
	if err := text.Encode(v); err != nil {
		panic("dashboard: cannot encode an event: " + err.Error())
	}
	raw.WriteByte('\n')
	return raw.Bytes()
}

// write sends encoded events. It returns an error if the browser accepts no data for sendTimeout.
func (e *eventStream) write(encodedEvents []byte) error {
	e.w.Header().Set("Content-Type", "text/event-stream")
	if err := errors.Join(e.controller.SetWriteDeadline(time.Now().Add(sendTimeout)),
		e.controller.SetReadDeadline(time.Time{})); err != nil {
		return err
	}
	return e.conn.batchWrites(func() error {
		if _, err := e.w.Write(encodedEvents); err != nil {
			return err
		}
		return e.controller.Flush()
	})
}

// renderLoop renders the parts of a page repeatedly until ctx ends, that is, until the last reader leaves. If the
// queue cannot be read, renderLoop skips an update. It returns false when the user's right has changed.
func (s *Server) renderLoop(ctx context.Context, v visitor, right control.Right, vw *view, u *url.URL,
	page *livePage) bool {
	v.client = s.clientOf(&v)
	defer v.client.Close()
	ticker := time.NewTicker(cmp.Or(vw.minInterval, renderInterval))
	defer ticker.Stop()
	var lastEventSeq int64
	var renderedAt time.Time
	rightCheckedAt := time.Now() // time of the last check of the user's right
	for {
		if time.Since(rightCheckedAt) >= tickInterval {
			rightCheckedAt = time.Now()
			if who, err := v.client.Whoami(ctx, control.NoParams{}); err == nil && who.Right != right ||
				errors.Is(err, queue.ErrDenied) {
				return false
			}
		}
		st, err := v.client.Status(ctx, control.NoParams{})
		if err == nil && (st.LastEventSeq != lastEventSeq || time.Since(renderedAt) >= pollInterval) {
			if parts := s.renderParts(ctx, &v, vw, u); parts != nil {
				lastEventSeq, renderedAt = st.LastEventSeq, time.Now()
				s.livePages.publish(page, parts)
			}
		}
		v.client.Close() // the client reconnects for the next update
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return true
		}
	}
}

// renderParts renders the parts of a page. It returns nil on failure.
func (s *Server) renderParts(ctx context.Context, v *visitor, vw *view, u *url.URL) (parts map[string]string) {
	defer func() {
		if p := recover(); p != nil {
			s.opt.Log.Error("an open web page could not be updated; this is a bug in queuectl, please report it", "page", u.Path,
				"panic", p, "stack", string(debug.Stack()))
			parts = nil
		}
	}()
	p, err := vw.buildPage(ctx, v, u)
	if err != nil {
		return nil
	}
	p.Now = time.Now()
	parts = map[string]string{}
	for _, name := range append([]string{"deadcount"}, vw.parts...) {
		parts[name] = string(renderTemplate(vw.name, name, p))
	}
	return parts
}

// sendOutput sends the lines that a job prints, starting with the last lines. The browser replaces the lines of
// the page by the first batch, and appends later batches.
func (s *Server) sendOutput(ctx context.Context, v visitor, id control.JobID, lines chan<- []line) {
	v.client = s.clientOf(&v)
	defer v.client.Close()
	pieces, n := make(chan line, 32), maxShownLines
	go func() { // this goroutine ends together with the request or the job
		defer close(pieces)
		var o outputLines
		// Ignore the error. A visitor that may not see the output gets no lines.
		v.client.Logs(ctx, control.Logs{ID: id, LastLines: &n, Follow: true}, func(p control.OutputPiece) error {
			for _, l := range o.linesOfPiece(&p) {
				select {
				case pieces <- l:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		})
	}()
	for first := true; ; first = false {
		l, more := <-pieces
		if !more {
			return
		}
		list, bytes := []line{l}, l.memoryBytes()
		flush := time.After(outputInterval)
	gather:
		for bytes < maxOutputBytes {
			select {
			case l, more := <-pieces:
				if !more {
					break gather
				}
				list = appendLine(list, l)
				bytes += l.memoryBytes()
			case <-flush:
				break gather
			}
		}
		list[0].First = first
		select {
		case lines <- list:
		case <-ctx.Done():
			return
		}
	}
}
