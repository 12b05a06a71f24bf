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

// These constants are the timing and the limits of live pages, that is, pages that are updated in the browser. Every
// eventRenderInterval, the server checks whether events have occurred and, if so, renders the page again. Without
// events, it renders the page every idleRenderInterval. Every tickEventInterval, it sends each browser an event named
// tick. New output of a job is sent every outputBatchInterval, in batches of about maxOutputBatchBytes bytes. See
// docs/decisions/0084.
const (
	eventRenderInterval    = time.Second
	idleRenderInterval     = 5 * time.Second
	tickEventInterval      = 5 * time.Second
	outputBatchInterval    = 250 * time.Millisecond
	maxOutputBatchBytes    = 64 << 10
	maxUserPageSubscribers = 600 // maximum number of event streams of one user
	maxUserLivePages       = 64  // maximum number of different pages that are kept up to date for one user
)

// livePages keeps pages in browsers up to date. A reader is a browser that shows a page. If a user has the same page
// open several times, the server renders it only once for all these readers. The methods are safe for concurrent use.
type livePages struct {
	subscriberLimiter, pageLimiter *fair.Limiter // limit the readers and the pages of each user

	mu         sync.Mutex
	pagesByKey map[string]*livePage // guarded by mu
}

func newLivePages() *livePages {
	return &livePages{subscriberLimiter: fair.NewLimiter(fair.Bound{MaxAmount: maxUserPageSubscribers}),
		pageLimiter: fair.NewLimiter(fair.Bound{MaxAmount: maxUserLivePages}), pagesByKey: map[string]*livePage{}}
}

// livePage is one page as one user sees it, and its subscribers.
type livePage struct {
	key               string // key in livePages.pagesByKey
	uid               int
	lastRenderedParts *encodedPageParts // all parts of the page in their last rendered form; guarded by livePages.mu
	// lastPartsWithoutAges contains the parts of lastRenderedParts without the elements that show ages (see
	// ageElementPattern). It is compared with newly rendered parts, to find those that have changed. lastPartsWithoutAges
	// and the fields below are guarded by livePages.mu.
	lastPartsWithoutAges map[string]string
	subscribers          map[*pageSubscriber]bool
	isClosed             bool // all subscribers must disconnect
	stopRendering        context.CancelFunc
}

// pageSubscriber is the event stream of one browser. If a part of the page is rendered again before the browser has
// received the part, the browser gets only the newer version.
type pageSubscriber struct {
	unsentParts *encodedPageParts // parts to send; guarded by livePages.mu
	wake        chan struct{}     // receives a value when unsentParts is set or the page is closed
}

// encodedPageParts contains rendered parts of a page, and their encoding as an event. Readers that get the same parts
// share the encoded bytes.
type encodedPageParts struct {
	htmlByPartName map[string]string // HTML by name of the part
	eventBytes     func() []byte     // returns the parts as a server-sent event; encodes them only once
}

func newEncodedPageParts(htmlByPartName map[string]string) *encodedPageParts {
	return &encodedPageParts{htmlByPartName, sync.OnceValue(func() []byte {
		return encodeEvent("fragments",
			htmlByPartName)
	})}
}

// mergeNewerParts returns a copy of p with the parts of newer. If p and newer contain a part of the same name, the copy
// contains the part of newer.
func (p *encodedPageParts) mergeNewerParts(newer *encodedPageParts) *encodedPageParts {
	if p == nil {
		return newer
	}
	parts := maps.Clone(p.htmlByPartName)
	maps.Copy(parts, newer.htmlByPartName)
	return newEncodedPageParts(parts)
}

// addSubscriber adds a reader to the page with the given key. If it is the first reader, addSubscriber calls renderLoop
// in a new goroutine.
func (p *livePages) addSubscriber(uid int, pageKey string, renderLoop func(context.Context, *livePage)) (
	*pageSubscriber, *livePage, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	user := fair.Request{UserID: uid}
	if !p.subscriberLimiter.TryAcquire(user) {
		return nil, nil, queue.Errorf(queue.CodeUnavailable,
			"you have %d windows of the page open, the limit for one user; close one", maxUserPageSubscribers)
	}
	page := p.pagesByKey[pageKey]
	if page == nil {
		if !p.pageLimiter.TryAcquire(user) {
			p.subscriberLimiter.Release(user)
			return nil, nil, queue.Errorf(queue.CodeUnavailable,
				"you have %d different pages open, the limit for live updates; close one", maxUserLivePages)
		}
		ctx, cancel := context.WithCancel(context.Background())
		page = &livePage{key: pageKey, uid: uid, subscribers: map[*pageSubscriber]bool{}, stopRendering: cancel}
		p.pagesByKey[pageKey] = page
		go renderLoop(ctx, page) // this goroutine ends after the last reader has left
	}
	r := &pageSubscriber{wake: make(chan struct{}, 1), unsentParts: page.lastRenderedParts}
	if r.unsentParts != nil {
		r.wake <- struct{}{}
	}
	page.subscribers[r] = true
	return r, page, nil
}

// removeSubscriber removes a reader from a page. If it was the last reader, the render loop of the page ends.
func (p *livePages) removeSubscriber(page *livePage, r *pageSubscriber) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(page.subscribers, r)
	p.subscriberLimiter.Release(fair.Request{UserID: page.uid})
	if len(page.subscribers) == 0 {
		page.stopRendering()
		p.removePageLocked(page)
	}
}

// removePageLocked removes a page from pagesByKey. It does nothing if the page was already removed or replaced.
// The caller holds mu.
func (p *livePages) removePageLocked(page *livePage) {
	if p.pagesByKey[page.key] == page {
		delete(p.pagesByKey, page.key)
		p.pageLimiter.Release(fair.Request{UserID: page.uid})
	}
}

// ageElementPattern matches the HTML elements that show ages, such as "5 min ago". Ages change all the time, so the
// browser updates these elements itself.
var ageElementPattern = regexp.MustCompile(`<time data-s="\d+">[^<]*</time>`)

// publishChangedParts sends to the readers of a page those parts of the page that have changed.
func (p *livePages) publishChangedParts(page *livePage, parts map[string]string) {
	plain := map[string]string{}
	for name, html := range parts {
		plain[name] = ageElementPattern.ReplaceAllString(html, "")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	changed := newEncodedPageParts(map[string]string{})
	for name, html := range parts {
		if page.lastPartsWithoutAges[name] != plain[name] {
			changed.htmlByPartName[name] = html
		}
	}
	page.lastRenderedParts, page.lastPartsWithoutAges = newEncodedPageParts(parts), plain
	if len(changed.htmlByPartName) == 0 {
		return
	}
	for r := range page.subscribers {
		r.unsentParts = r.unsentParts.mergeNewerParts(changed)
		queue.TrySend(r.wake, struct{}{})
	}
}

// disconnectSubscribers disconnects all readers of a page. The next reader that connects starts a new render loop.
func (p *livePages) disconnectSubscribers(page *livePage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	page.isClosed = true
	p.removePageLocked(page)
	for r := range page.subscribers {
		queue.TrySend(r.wake, struct{}{})
	}
}

// takeUnsentParts returns the parts that the reader has not received yet, and whether the reader must disconnect.
func (p *livePages) takeUnsentParts(page *livePage, r *pageSubscriber) (unsentParts *encodedPageParts,
	mustDisconnect bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	unsentParts, r.unsentParts = r.unsentParts, nil
	return unsentParts, page.isClosed
}

// viewForPath returns the view of the page at a path, or nil if there is no page.
func viewForPath(path string) *pageView {
	switch {
	case path == "/":
		return viewsByPath["/{$}"]
	case strings.HasPrefix(path, "/jobs/"), path == "/job":
		return viewsByPath["/jobs/{id...}"]
	}
	return viewsByPath[path]
}

// actionResultParamNames lists the query parameters that only describe the result of the visitor's last action on jobs.
var actionResultParamNames = []string{"did", "n"}

// serveLivePage keeps a page in a browser up to date with server-sent events. It sends the parts of the page that have
// changed, the new output of the job that the page shows, and a tick every tickEventInterval.
func (s *Server) serveLivePage(w http.ResponseWriter, r *http.Request, v *visitor) error {
	r, end := withCancelOnServerClose(r)
	defer end()
	u, err := url.ParseRequestURI(r.URL.Query().Get("page"))
	if err != nil {
		return queue.InvalidFieldError("page", "must be the path of a page, like /jobs")
	}
	view := viewForPath(u.Path)
	if view == nil {
		return pageNotFoundError(u.Path)
	}
	if err := view.checkQuery(u); err != nil {
		return err
	}
	q := url.Values{}
	for _, name := range view.acceptedQueryParams {
		if value := u.Query().Get(name); value != "" && !slices.Contains(actionResultParamNames, name) {
			// Leave out actionResultParamNames, which do not change the page, so that all readers share one livePage.
			q.Set(name, value)
		}
	}
	u = &url.URL{Path: u.Path, RawQuery: q.Encode()}
	current, err := view.buildPage(r.Context(), v, u)
	if err != nil {
		return err // return this error instead of an empty stream; a request for the page itself fails with the same error
	}
	key := fmt.Sprintf("%d %s %s", v.peer.UID, v.formToken, u.RequestURI())
	reader, page, err := s.livePages.addSubscriber(v.peer.UID, key, func(ctx context.Context, f *livePage) {
		if !s.renderLoop(ctx, *v, current.Right, view, u, f) {
			s.livePages.disconnectSubscribers(f)
		}
	})
	if err != nil {
		return err
	}
	defer s.livePages.removeSubscriber(page, reader)
	// Close the client's connection to the service, which the client opens again when it needs to. An open connection
	// would use memory and make the service use more processors (see control.Server.OnConcurrencyLimit).
	v.client.Close()
	out := &eventStream{w, connFromContext(r.Context())}
	lines := make(chan []outputLine)
	if view == viewsByPath["/jobs/{id...}"] {
		go s.streamJobOutput(r.Context(), *v, jobIDFromURL(u), lines)
	}
	tick := time.NewTicker(tickEventInterval)
	defer tick.Stop()
	for err = out.sendEvent("tick", nil); err == nil; {
		select {
		case <-reader.wake:
			unsent, ended := s.livePages.takeUnsentParts(page, reader)
			if ended {
				return nil
			}
			if unsent != nil {
				err = out.writeEncodedEvents(unsent.eventBytes())
			}
		case list := <-lines:
			err = out.sendEvent("output", list)
		case <-tick.C:
			if !s.isSessionValid(r, v) || !current.jobStillExists(r.Context(), v) {
				return nil
			}
			v.client.Close()
			err = out.sendEvent("tick", nil)
		case <-r.Context().Done():
			return nil
		}
	}
	return nil // the reader has disconnected
}

// isSessionValid reports whether the session with which the visitor opened the stream is still valid.
func (s *Server) isSessionValid(r *http.Request, v *visitor) bool {
	now, found := s.findVisitor(r)
	return found && now.formToken == v.formToken
}

// eventStream writes server-sent events to one browser.
type eventStream struct {
	w    http.ResponseWriter
	conn *pageConn
}

// sendEvent sends one event. It returns an error if the browser has accepted no data for sendTimeout.
func (e *eventStream) sendEvent(eventName string, v any) error {
	return e.writeEncodedEvents(encodeEvent(eventName, v))
}

// encodeEvent encodes a server-sent event.
func encodeEvent(eventName string, v any) []byte {
	var raw bytes.Buffer
	raw.WriteString("event: " + eventName + "\ndata: ")
	text := json.NewEncoder(&raw)
	text.SetEscapeHTML(false) // escapes would double the size of the HTML
	if err := text.Encode(v); err != nil {
		panic("dashboard: cannot encode an event: " + err.Error())
	}
	raw.WriteByte('\n')
	return raw.Bytes()
}

// writeEncodedEvents sends encoded events. It returns an error if the browser has accepted no data for sendTimeout.
func (e *eventStream) writeEncodedEvents(encodedEvents []byte) error {
	e.w.Header().Set("Content-Type", "text/event-stream")
	controller := http.NewResponseController(e.w)
	if err := errors.Join(controller.SetWriteDeadline(time.Now().Add(sendTimeout)),
		controller.SetReadDeadline(time.Time{})); err != nil {
		return err
	}
	return e.conn.batchWrites(func() error {
		if _, err := e.w.Write(encodedEvents); err != nil {
			return err
		}
		return controller.Flush()
	})
}

// renderLoop renders and publishes a page repeatedly, until ctx ends because the last reader has left. If the queue
// cannot be read, renderLoop skips the update. It returns false if the user no longer has initialRight.
func (s *Server) renderLoop(ctx context.Context, v visitor, initialRight control.Right, vw *pageView, u *url.URL,
	page *livePage) bool {
	v.client = s.newVisitorClient(&v)
	defer v.client.Close()
	ticker := time.NewTicker(cmp.Or(vw.minUpdateInterval, eventRenderInterval))
	defer ticker.Stop()
	var lastEventSeq int64
	var renderedAt time.Time
	rightCheckedAt := time.Now() // when the user's right was last checked
	for {
		if time.Since(rightCheckedAt) >= tickEventInterval {
			rightCheckedAt = time.Now()
			if who, err := v.client.Whoami(ctx, control.NoParams{}); err == nil && who.Right != initialRight ||
				errors.Is(err, queue.ErrDenied) {
				return false
			}
		}
		st, err := v.client.Status(ctx, control.NoParams{})
		if err == nil && (st.LastEventSeq != lastEventSeq || time.Since(renderedAt) >= idleRenderInterval) {
			if parts := s.renderParts(ctx, &v, vw, u); parts != nil {
				lastEventSeq, renderedAt = st.LastEventSeq, time.Now()
				s.livePages.publishChangedParts(page, parts)
			}
		}
		v.client.Close() // free the connection until the next update, for which the client connects again
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return true
		}
	}
}

// renderParts renders the parts of a page that are kept up to date. It returns nil if the page cannot be built.
func (s *Server) renderParts(ctx context.Context, v *visitor, vw *pageView, u *url.URL) (parts map[string]string) {
	defer func() {
		if p := recover(); p != nil {
			s.options.Log.Error("an open web page could not be updated; this is a bug in queuectl, please report it", "page",
				u.Path,
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
	for _, name := range append([]string{"deadcount"}, vw.updatedPartNames...) {
		parts[name] = string(renderTemplate(vw.templateName, name, p))
	}
	return parts
}

// streamJobOutput sends the output lines of a job to the channel lines, in batches. The first batch contains the last
// lines that the job has already printed; the browser replaces all shown lines by this batch. The browser appends the
// later batches.
func (s *Server) streamJobOutput(ctx context.Context, v visitor, id control.JobID, lines chan<- []outputLine) {
	v.client = s.newVisitorClient(&v)
	defer v.client.Close()
	pieces, n := make(chan outputLine, 32), maxInitialOutputLines
	go func() { // this goroutine ends when the request or the job ends
		defer close(pieces)
		var o outputLineConverter
		// Ignore the error: without permission to see the output, the visitor gets no lines.
		v.client.StreamOutput(ctx, control.JobOutputParams{ID: id, LastLineCount: &n, Follow: true},
			func(p control.OutputPiece) error {
				for _, l := range o.convertPiece(&p) {
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
		list, bytes := []outputLine{l}, l.memoryBytes()
		flush := time.After(outputBatchInterval)
	gather:
		for bytes < maxOutputBatchBytes {
			select {
			case l, more := <-pieces:
				if !more {
					break gather
				}
				list = appendOrReplaceLine(list, l)
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
