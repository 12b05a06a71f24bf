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

// These constants are the timing and the limits of live pages. While a page has readers, the server
// renders it every pollInterval. If new events happen, the server renders it earlier, but at most
// every renderInterval. Each reader gets a tick every tickInterval. New output is sent every
// outputInterval, in batches of about maxOutputBytes bytes. See docs/decisions/0084.
const (
	renderInterval = time.Second
	pollInterval   = 5 * time.Second
	tickInterval   = 5 * time.Second
	outputInterval = 250 * time.Millisecond
	maxOutputBytes = 64 << 10
	maxUserReaders = 600 // maximum number of streams of one user, over all pages
	maxUserFeeds   = 64  // maximum number of pages that are updated for one user
)

// feeds updates the pages that have readers. For each user, it renders a page once, however many
// readers the page has. Its methods are safe for concurrent use.
type feeds struct {
	readers, pages *fair.Limiter // numbers of readers and of pages, by user

	mu    sync.Mutex
	byKey map[string]*feed // guarded by mu
}

func newFeeds() *feeds {
	return &feeds{readers: fair.New(fair.Bound{Max: maxUserReaders}), pages: fair.New(fair.Bound{Max: maxUserFeeds}),
		byKey: map[string]*feed{}}
}

// feed is one page as one user sees it, together with the readers of the page.
type feed struct {
	uid       int
	lastFrame *frame // all parts as rendered last; guarded by feeds.mu
	// lastParts contains the parts of lastFrame without their clocks, which the browser advances
	// itself. New parts are compared with lastParts to find the changed ones. It is guarded by
	// feeds.mu, like the fields below.
	lastParts map[string]string
	readers   map[*reader]bool
	isClosed  bool // the readers must disconnect
	cancel    context.CancelFunc
}

// reader is the stream of one browser. Newer parts replace the parts that the browser has not
// received yet.
type reader struct {
	unsent *frame // parts that were not sent yet; guarded by feeds.mu
	wake   chan struct{}
}

// frame contains parts of a page. Readers that need the same parts share the encoded bytes.
type frame struct {
	parts map[string]string
	once  sync.Once
	bytes []byte
}

// event returns the frame as a server-sent event.
func (f *frame) event() []byte {
	f.once.Do(func() { f.bytes = eventOf("fragments", f.parts) })
	return f.bytes
}

// merge returns a copy of the frame in which newer parts replace older parts.
func (f *frame) merge(newer *frame) *frame {
	if f == nil {
		return newer
	}
	parts := maps.Clone(f.parts)
	maps.Copy(parts, newer.parts)
	return &frame{parts: parts}
}

// join adds a reader to a page. The first reader starts the render loop of the page.
func (f *feeds) join(uid int, key string, watch func(context.Context, *feed)) (*reader, *feed, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	user := fair.Request{User: uid}
	if !f.readers.TryAcquire(user) {
		return nil, nil, queue.Errorf(queue.CodeUnavailable,
			"you have %d windows of the page open, the limit for one user; close one", maxUserReaders)
	}
	page := f.byKey[key]
	if page == nil {
		if !f.pages.TryAcquire(user) {
			f.readers.Release(user)
			return nil, nil, queue.Errorf(queue.CodeUnavailable,
				"you have %d different pages open, the limit for live updates; close one", maxUserFeeds)
		}
		ctx, cancel := context.WithCancel(context.Background())
		page = &feed{uid: uid, readers: map[*reader]bool{}, cancel: cancel}
		f.byKey[key] = page
		go watch(ctx, page) // this goroutine ends after the last reader has left
	}
	r := &reader{wake: make(chan struct{}, 1), unsent: page.lastFrame}
	if r.unsent != nil {
		r.wake <- struct{}{}
	}
	page.readers[r] = true
	return r, page, nil
}

// removeReader removes a reader. The last reader ends the render loop of the page.
func (f *feeds) removeReader(uid int, key string, page *feed, r *reader) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(page.readers, r)
	f.readers.Release(fair.Request{User: uid})
	if len(page.readers) == 0 {
		page.cancel()
		f.removePageLocked(key, page)
	}
}

// removePageLocked removes a page, unless the page was removed before. The caller holds mu.
func (f *feeds) removePageLocked(key string, page *feed) {
	if f.byKey[key] == page {
		delete(f.byKey, key)
		f.pages.Release(fair.Request{User: page.uid})
	}
}

// clocks matches the elements that show ages. Two renderings of the same state differ only in these
// elements.
var clocks = regexp.MustCompile(`<time data-s="\d+">[^<]*</time>`)

// publish sends the changed parts of a page to the readers of the page.
func (f *feeds) publish(page *feed, parts map[string]string) {
	plain := map[string]string{}
	for name, html := range parts {
		plain[name] = clocks.ReplaceAllString(html, "")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	changed := &frame{parts: map[string]string{}}
	for name, html := range parts {
		if page.lastParts[name] != plain[name] {
			changed.parts[name] = html
		}
	}
	page.lastFrame, page.lastParts = &frame{parts: parts}, plain
	if len(changed.parts) == 0 {
		return
	}
	for r := range page.readers {
		r.unsent = r.unsent.merge(changed)
		r.signal()
	}
}

// end disconnects all readers of a page. A reader that joins later starts a new render loop.
func (f *feeds) end(key string, page *feed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	page.isClosed = true
	f.removePageLocked(key, page)
	for r := range page.readers {
		r.signal()
	}
}

func (r *reader) signal() {
	select {
	case r.wake <- struct{}{}:
	default: // a wake-up is already pending
	}
}

// take returns the parts that a reader has not received yet, and whether the reader must
// disconnect.
func (f *feeds) take(page *feed, r *reader) (unsent *frame, ended bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	unsent, r.unsent = r.unsent, nil
	return unsent, page.isClosed
}

// viewOf returns the page of a path, or nil if the path has no page.
func viewOf(path string) *view {
	switch {
	case path == "/":
		return views["/{$}"]
	case strings.HasPrefix(path, "/jobs/"), path == "/job":
		return views["/jobs/{id...}"]
	}
	return views[path]
}

// outcomeParams lists the parameters of a page that only describe the last action.
var outcomeParams = []string{"did", "n"}

// live keeps a page up to date with server-sent events. It sends the changed fragments by id, the
// output lines of the page's job, and a tick if it sends nothing else.
func (s *Server) live(w http.ResponseWriter, r *http.Request, v *visitor) error {
	r, end := endWithPage(r)
	defer end()
	u, err := url.ParseRequestURI(r.URL.Query().Get("page"))
	if err != nil {
		return queue.Invalid("page", "must be the path of a page, like /jobs")
	}
	view := viewOf(u.Path)
	if view == nil {
		return errNoPage(u.Path)
	}
	if err := view.check(u); err != nil {
		return err
	}
	q := url.Values{}
	for _, name := range view.query {
		if value := u.Query().Get(name); value != "" && !slices.Contains(outcomeParams, name) {
			// Pages that differ only in outcomeParams share a feed.
			q.Set(name, value)
		}
	}
	u = &url.URL{Path: u.Path, RawQuery: q.Encode()}
	current, err := view.make(r.Context(), v, u)
	if err != nil {
		return err // the page itself returns the same error
	}
	key := fmt.Sprintf("%d %s %s", v.peer.UID, v.token, u.RequestURI())
	reader, page, err := s.feeds.join(v.peer.UID, key, func(ctx context.Context, f *feed) {
		if !s.renderLoop(ctx, *v, current.Right, view, u, f) {
			s.feeds.end(key, f)
		}
	})
	if err != nil {
		return err
	}
	defer s.feeds.removeReader(v.peer.UID, key, page, reader)
	// Close the client, which reconnects when needed. Open connections use memory and make the
	// service raise GOMAXPROCS.
	v.client.Close()
	out := &eventStream{w: w, controller: http.NewResponseController(w), conn: connOf(r.Context())}
	lines := make(chan []line)
	if view == views["/jobs/{id...}"] {
		go s.sendOutput(r.Context(), *v, jobOf(u), lines)
	}
	tick := time.NewTicker(tickInterval)
	defer tick.Stop()
	for err = out.send("tick", nil); err == nil; {
		select {
		case <-reader.wake:
			unsent, ended := s.feeds.take(page, reader)
			if ended {
				return nil
			}
			if unsent != nil {
				err = out.write(unsent.event())
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

// mayStay reports whether the reader of a stream may continue: the session is valid and the right
// has not changed. Otherwise the browser reconnects, and the server checks the rights again.
func (s *Server) mayStay(r *http.Request, v *visitor, right control.Right) bool {
	if !s.isSignedIn(r, v) {
		return false
	}
	who, err := v.client.Whoami(r.Context(), control.Nothing{})
	return err == nil && who.Right == right
}

// isSignedIn reports whether the session of a stream's reader is still valid.
func (s *Server) isSignedIn(r *http.Request, v *visitor) bool {
	now, found := s.findVisitor(r)
	return found && now.token == v.token
}

// eventStream writes server-sent events.
type eventStream struct {
	w          http.ResponseWriter
	controller *http.ResponseController
	conn       *pageConn
}

// send sends an event. It fails if the browser accepts no data for sendTimeout.
func (e *eventStream) send(name string, v any) error { return e.write(eventOf(name, v)) }

// eventOf encodes a server-sent event.
func eventOf(name string, v any) []byte {
	var raw bytes.Buffer
	raw.WriteString("event: " + name + "\ndata: ")
	text := json.NewEncoder(&raw)
	text.SetEscapeHTML(false) // escaping would double the size of fragments
	if err := text.Encode(v); err != nil {
		panic("dashboard: cannot encode an event: " + err.Error())
	}
	raw.WriteByte('\n')
	return raw.Bytes()
}

// write sends encoded events.
func (e *eventStream) write(text []byte) error {
	e.w.Header().Set("Content-Type", "text/event-stream")
	if err := errors.Join(e.controller.SetWriteDeadline(time.Now().Add(sendTimeout)),
		e.controller.SetReadDeadline(time.Time{})); err != nil {
		return err
	}
	return e.conn.batchWrites(func() error {
		if _, err := e.w.Write(text); err != nil {
			return err
		}
		return e.controller.Flush()
	})
}

// renderLoop renders the parts of a page repeatedly while the page has readers. If the queue cannot
// be read, it skips the update. It returns false when the right of the readers has changed.
func (s *Server) renderLoop(ctx context.Context, v visitor, right control.Right, vw *view, u *url.URL, f *feed) bool {
	v.client = s.clientOf(&v)
	defer v.client.Close()
	ticker := time.NewTicker(cmp.Or(vw.minInterval, renderInterval))
	defer ticker.Stop()
	var last int64
	var made time.Time
	rendered := time.Now() // time of the last check of the readers' right
	for {
		if time.Since(rendered) >= tickInterval {
			rendered = time.Now()
			if who, err := v.client.Whoami(ctx, control.Nothing{}); err == nil && who.Right != right ||
				errors.Is(err, queue.ErrDenied) {
				return false
			}
		}
		st, err := v.client.Status(ctx, control.Nothing{})
		if err == nil && (st.LastEvent != last || time.Since(made) >= pollInterval) {
			if parts := s.partsOf(ctx, &v, vw, u); parts != nil {
				last, made = st.LastEvent, time.Now()
				s.feeds.publish(f, parts)
			}
		}
		v.client.Close() // the client reconnects for the next update; see Server.live
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return true
		}
	}
}

// partsOf renders the parts of a page. It returns nil if that fails.
func (s *Server) partsOf(ctx context.Context, v *visitor, vw *view, u *url.URL) (parts map[string]string) {
	defer func() {
		if p := recover(); p != nil {
			s.opt.Log.Error("an open web page could not be updated; this is a bug in queuectl, please report it", "page", u.Path,
				"panic", p, "stack", string(debug.Stack()))
			parts = nil
		}
	}()
	p, err := vw.make(ctx, v, u)
	if err != nil {
		return nil
	}
	p.Now = time.Now()
	parts = map[string]string{}
	for _, name := range append([]string{"deadcount"}, vw.parts...) {
		parts[name] = string(execute(vw.name, name, p))
	}
	return parts
}

// sendOutput sends the lines that a job prints, starting with the last lines. The first batch
// replaces the lines that the page shows.
func (s *Server) sendOutput(ctx context.Context, v visitor, id control.Name, lines chan<- []line) {
	v.client = s.clientOf(&v)
	defer v.client.Close()
	pieces, n := make(chan line, 32), shownLines
	go func() { // this goroutine ends when the request or the job ends
		defer close(pieces)
		var o outputLines
		// Ignore the error. A visitor without the right to see the output gets no lines.
		v.client.Logs(ctx, control.Logs{ID: id, N: &n, Follow: true}, func(p control.Piece) error {
			for _, l := range o.next(&p) {
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
		list, bytes := []line{l}, l.size()
		flush := time.After(outputInterval)
	gather:
		for bytes < maxOutputBytes {
			select {
			case l, more := <-pieces:
				if !more {
					break gather
				}
				list = add(list, l)
				bytes += l.size()
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
