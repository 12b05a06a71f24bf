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
	"github.com/queuectl/queuectl/queue"
)

// Timing and limits of live pages. While a page has readers, it is rendered at most every renderEach if there
// are new events, and otherwise every lookEach. Each reader gets a tick every tickEach. New output is sent
// every outputEach, about outputMost bytes at a time. See docs/decisions/0084.
const (
	renderEach  = time.Second
	lookEach    = 5 * time.Second
	tickEach    = 5 * time.Second
	outputEach  = 250 * time.Millisecond
	outputMost  = 64 << 10
	userReaders = 600 // maximum number of streams of one user, over all pages
	userFeeds   = 64  // maximum number of pages that are kept up to date for one user
)

// feeds keeps the pages up to date that have readers. Each page of a user is rendered once, regardless of the
// number of its readers. Its methods are safe for concurrent use.
type feeds struct {
	mu      sync.Mutex
	by      map[string]*feed
	readers map[int]int // number of readers, by uid
}

// feed is one page as one user sees it.
type feed struct {
	uid   int
	whole *frame // all parts as last rendered; guarded by feeds.mu
	// The same without clocks, which the browser advances itself; guarded by feeds.mu, like the fields below.
	plain   map[string]string
	readers map[*reader]bool
	over    bool // the readers must disconnect
	cancel  context.CancelFunc
}

// reader is one browser's stream. Newer parts replace those that the browser has not received yet.
type reader struct {
	news *frame // parts that were not sent yet; guarded by feeds.mu
	bell chan struct{}
}

// frame holds parts of a page. Readers that need the same parts share the encoded bytes.
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

// with returns a copy of the frame in which newer parts replace older ones.
func (f *frame) with(newer *frame) *frame {
	if f == nil {
		return newer
	}
	parts := maps.Clone(f.parts)
	maps.Copy(parts, newer.parts)
	return &frame{parts: parts}
}

// join adds a reader to a page. The first reader starts the page's watch.
func (f *feeds) join(uid int, key string, watch func(context.Context, *feed)) (*reader, *feed, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.readers[uid] >= userReaders {
		return nil, nil, queue.Errorf(queue.CodeUnavailable, "you have %d windows of the page open, the limit for one user; close one", userReaders)
	}
	is := f.by[key]
	if is == nil {
		own := 0
		for _, other := range f.by {
			if other.uid == uid {
				own++
			}
		}
		if own >= userFeeds {
			return nil, nil, queue.Errorf(queue.CodeUnavailable, "you have %d different pages open, the limit for live updates; close one", own)
		}
		ctx, cancel := context.WithCancel(context.Background())
		is = &feed{uid: uid, readers: map[*reader]bool{}, cancel: cancel}
		if f.by == nil {
			f.by, f.readers = map[string]*feed{}, map[int]int{}
		}
		f.by[key] = is
		go watch(ctx, is) // ends after the last reader leaves
	}
	r := &reader{bell: make(chan struct{}, 1), news: is.whole}
	if r.news != nil {
		r.bell <- struct{}{}
	}
	is.readers[r] = true
	f.readers[uid]++
	return r, is, nil
}

// leave removes a reader. The last reader ends the page's watch.
func (f *feeds) leave(uid int, key string, is *feed, r *reader) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(is.readers, r)
	if f.readers[uid]--; f.readers[uid] == 0 {
		delete(f.readers, uid)
	}
	if len(is.readers) == 0 {
		is.cancel()
		if f.by[key] == is {
			delete(f.by, key)
		}
	}
}

// clocks matches the only text that differs between two renderings of the same state.
var clocks = regexp.MustCompile(`<time data-s="\d+">[^<]*</time>`)

// publish sends the changed parts of a page to its readers.
func (f *feeds) publish(is *feed, parts map[string]string) {
	plain := map[string]string{}
	for name, html := range parts {
		plain[name] = clocks.ReplaceAllString(html, "")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	changed := &frame{parts: map[string]string{}}
	for name, html := range parts {
		if is.plain[name] != plain[name] {
			changed.parts[name] = html
		}
	}
	is.whole, is.plain = &frame{parts: parts}, plain
	if len(changed.parts) == 0 {
		return
	}
	for r := range is.readers {
		r.news = r.news.with(changed)
		r.ring()
	}
}

// end disconnects all readers of a page. A reader that joins later starts a new watch.
func (f *feeds) end(key string, is *feed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	is.over = true
	if f.by[key] == is {
		delete(f.by, key)
	}
	for r := range is.readers {
		r.ring()
	}
}

func (r *reader) ring() {
	select {
	case r.bell <- struct{}{}:
	default: // already signalled
	}
}

// take returns the parts that a reader has not received yet, and whether the reader must disconnect.
func (f *feeds) take(is *feed, r *reader) (news *frame, over bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	news, r.news = r.news, nil
	return news, is.over
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

// passing lists the page parameters that only describe the last action.
var passing = []string{"did", "n"}

// live keeps a page up to date with server-sent events. It sends changed fragments by their ids, the lines
// that the page's job prints, and a tick if nothing else is sent.
func (s *Server) live(w http.ResponseWriter, r *http.Request, v *visitor) error {
	r, end := streaming(r)
	defer end()
	u, err := url.ParseRequestURI(r.URL.Query().Get("page"))
	if err != nil {
		return queue.Invalid("page", "must be the path of a page, like /jobs")
	}
	is := viewOf(u.Path)
	if is == nil {
		return errNoPage(u.Path)
	}
	if err := is.check(u); err != nil {
		return err
	}
	q := url.Values{}
	for _, name := range is.query {
		if value := u.Query().Get(name); value != "" && !slices.Contains(passing, name) {
			// Pages that differ only in these share a feed.
			q.Set(name, value)
		}
	}
	u = &url.URL{Path: u.Path, RawQuery: q.Encode()}
	was, err := is.make(r.Context(), v, u)
	if err != nil {
		return err // the same error as from the page itself
	}
	key := fmt.Sprintf("%d %s %s", v.peer.UID, v.token, u.RequestURI())
	reads, page, err := s.feeds.join(v.peer.UID, key, func(ctx context.Context, f *feed) {
		if !s.watch(ctx, *v, was.Right, is, u, f) {
			s.feeds.end(key, f)
		}
	})
	if err != nil {
		return err
	}
	defer s.feeds.leave(v.peer.UID, key, page, reads)
	// The client reconnects when needed; open connections use memory and make the service raise GOMAXPROCS.
	v.client.Close()
	out := &eventStream{w: w, out: http.NewResponseController(w), to: callerOf(r.Context())}
	lines := make(chan []line)
	if is == views["/jobs/{id...}"] {
		go s.follow(r.Context(), *v, jobOf(u), lines)
	}
	tick := time.NewTicker(tickEach)
	defer tick.Stop()
	for err = out.say("tick", nil); err == nil; {
		select {
		case <-reads.bell:
			news, over := s.feeds.take(page, reads)
			if over {
				return nil
			}
			if news != nil {
				err = out.write(news.event())
			}
		case list := <-lines:
			err = out.say("output", list)
		case <-tick.C:
			if !s.entered(r, v) || !was.stands(r.Context(), v) {
				return nil
			}
			v.client.Close()
			err = out.say("tick", nil)
		case <-r.Context().Done():
			return nil
		}
	}
	return nil // the reader has disconnected
}

// stays reports whether the reader of a stream may continue: the session is valid, and the right is
// unchanged. If not, the browser reconnects, and its rights are checked again.
func (s *Server) stays(r *http.Request, v *visitor, right control.Right) bool {
	if !s.entered(r, v) {
		return false
	}
	who, err := v.client.Whoami(r.Context(), control.Nothing{})
	return err == nil && who.Right == right
}

// entered reports whether the session of a stream's reader is still valid.
func (s *Server) entered(r *http.Request, v *visitor) bool {
	now, found := s.visitorOf(r)
	return found && now.token == v.token
}

// eventStream writes server-sent events.
type eventStream struct {
	w   http.ResponseWriter
	out *http.ResponseController
	to  *caller
}

// say sends an event. Sending fails if the reader accepts no data for takenWithin.
func (e *eventStream) say(name string, v any) error { return e.write(eventOf(name, v)) }

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
	if err := errors.Join(e.out.SetWriteDeadline(time.Now().Add(takenWithin)), e.out.SetReadDeadline(time.Time{})); err != nil {
		return err
	}
	return e.to.gathering(func() error {
		if _, err := e.w.Write(text); err != nil {
			return err
		}
		return e.out.Flush()
	})
}

// watch renders the parts of a page again and again while the page has readers. It returns false when the
// readers' right has changed. It skips an update if the queue cannot be read.
func (s *Server) watch(ctx context.Context, v visitor, right control.Right, is *view, u *url.URL, f *feed) bool {
	v.client = s.clientOf(&v)
	defer v.client.Close()
	ticker := time.NewTicker(cmp.Or(is.each, renderEach))
	defer ticker.Stop()
	var last int64
	var made time.Time
	asked := time.Now() // time of the last check of the readers' right
	for {
		if time.Since(asked) >= tickEach {
			asked = time.Now()
			if who, err := v.client.Whoami(ctx, control.Nothing{}); err == nil && who.Right != right || errors.Is(err, queue.ErrDenied) {
				return false
			}
		}
		st, err := v.client.Status(ctx, control.Nothing{})
		if err == nil && (st.LastEvent != last || time.Since(made) >= lookEach) {
			if parts := s.partsOf(ctx, &v, is, u); parts != nil {
				last, made = st.LastEvent, time.Now()
				s.feeds.publish(f, parts)
			}
		}
		v.client.Close() // the client reconnects at the next update, see live
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return true
		}
	}
}

// partsOf renders the parts of a page. It returns nil if that fails.
func (s *Server) partsOf(ctx context.Context, v *visitor, is *view, u *url.URL) (parts map[string]string) {
	defer func() {
		if p := recover(); p != nil {
			s.opt.Log.Error("panic while updating a live page", "page", u.Path, "panic", p, "stack", string(debug.Stack()))
			parts = nil
		}
	}()
	p, err := is.make(ctx, v, u)
	if err != nil {
		return nil
	}
	p.Now = time.Now()
	parts = map[string]string{}
	for _, name := range append([]string{"deadcount"}, is.parts...) {
		parts[name] = string(execute(is.name, name, p))
	}
	return parts
}

// follow sends the lines that a job prints, starting with its last lines. The first batch replaces the lines
// that the page shows.
func (s *Server) follow(ctx context.Context, v visitor, id control.Name, lines chan<- []line) {
	v.client = s.clientOf(&v)
	defer v.client.Close()
	pieces, n := make(chan line, 32), shownLines
	go func() { // ends with the request or the job
		defer close(pieces)
		var o outputLines
		// Ignore the error: a visitor who may not see the output gets no lines.
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
		late := time.After(outputEach)
	gather:
		for bytes < outputMost {
			select {
			case l, more := <-pieces:
				if !more {
					break gather
				}
				list = add(list, l)
				bytes += l.size()
			case <-late:
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
