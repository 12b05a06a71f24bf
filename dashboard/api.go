package dashboard

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/metrics"
	"github.com/queuectl/queuectl/queue"
)

// httpStatusByErrorCode maps error codes to HTTP statuses. An error code that is not in the map has the status 500.
var httpStatusByErrorCode = map[queue.ErrorCode]int{
	queue.CodeInvalid: http.StatusBadRequest, queue.CodeInvalidRequest: http.StatusBadRequest,
	queue.CodeParse: http.StatusBadRequest, queue.CodeTooLarge: http.StatusRequestEntityTooLarge,
	queue.CodeUnsupported: http.StatusNotFound,
	queue.CodeNotFound:    http.StatusNotFound, queue.CodeExists: http.StatusConflict,
	queue.CodeWrongState: http.StatusConflict, queue.CodeDenied: http.StatusForbidden,
	queue.CodeQueueFull: http.StatusTooManyRequests, queue.CodeNoSpace: http.StatusInsufficientStorage,
	queue.CodeUnavailable: http.StatusServiceUnavailable,
}

// errNoSession is the error for a request without a session.
var errNoSession = queue.Errorf(queue.CodeDenied, "sign-in required; get a one-time link: queuectl web open")

// invalidValue returns the error for an invalid value of a parameter, a setting or a form's field. problem says what is
// wrong with the value, and what to do.
func invalidValue(name, value, problem string) *queue.Error {
	return queue.InvalidFieldError(name, "%q %s", queue.ClipForMessage(value), problem)
}

// replyError replies with an error. If the requested path is below /api, the reply is JSON, otherwise a page.
func (s *Server) replyError(w http.ResponseWriter, r *http.Request, err error) {
	e, known := errors.AsType[*queue.Error](err)
	if !known {
		e = &queue.Error{Code: queue.CodeInternal, Message: err.Error()}
	}
	s.replyErrorStatus(w, r, cmp.Or(httpStatusByErrorCode[e.Code], http.StatusInternalServerError), e)
}

// replyErrorStatus is like replyError, but the caller chooses the HTTP status.
func (s *Server) replyErrorStatus(w http.ResponseWriter, r *http.Request, status int, e *queue.Error) {
	if !strings.HasPrefix(r.URL.Path, "/api/") {
		s.replyErrorPage(w, r, status, e)
		return
	}
	writeJSON(w, status, map[string]any{"error": map[string]any{"code": e.Code, "message": e.Error()}})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	raw, err := json.Marshal(v)
	if err != nil {
		panic("dashboard: cannot encode a reply: " + err.Error())
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(append(raw, '\n'))
}

// serveAPIMethod replies with the result of an API method that changes nothing. The query of the URL contains the
// parameters of the method.
func (s *Server) serveAPIMethod(w http.ResponseWriter, r *http.Request, v *visitor) error {
	m := control.FindReadOnlyMethod(r.PathValue("method"))
	if m == nil {
		return queue.Errorf(queue.CodeNotFound, "there is no read-only method %q; /api/openapi.json lists them",
			queue.ClipForMessage(r.PathValue("method")))
	}
	params, err := control.ParamsFromQuery(m, r.URL.Query())
	if err != nil {
		return err
	}
	result, err := v.client.CallReadOnlyMethod(r.Context(), m, params)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(append(result, '\n'))
	return nil
}

// serveMetrics replies with the metrics of the queue in the format that the client requests.
func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request, v *visitor) error {
	registry, err := metrics.NewRegistry(r.Context(), v.client)
	if err == nil {
		promhttp.HandlerFor(registry, promhttp.HandlerOpts{DisableCompression: true}).ServeHTTP(w, r)
	}
	return err
}

// serveSummary replies with the data of the overview page.
func (s *Server) serveSummary(w http.ResponseWriter, r *http.Request, v *visitor) error {
	if err := checkParamNames(r.URL.Query()); err != nil {
		return err
	}
	screen, err := v.client.ReadOverviewScreen(r.Context(),
		control.OverviewScreenParams{JobsPerSection: maxOverviewSectionRows})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, screen)
	return nil
}

// If an event stream has no events, it sends a comment every eventHeartbeatInterval. The first comment comes after
// firstHeartbeatDelay, so that the browser does not wait long until it knows that the connection works.
const (
	eventHeartbeatInterval = 15 * time.Second
	firstHeartbeatDelay    = 100 * time.Millisecond
)

// serveEvents sends the events of the queue as server-sent events (HTML standard). The stream starts after the event
// with the number in the parameter "since" or, if a browser reconnects, after the last event that the browser has
// received. The stream ends if the client accepts no data for sendTimeout.
func (s *Server) serveEvents(w http.ResponseWriter, r *http.Request, v *visitor) error {
	r, end := withCancelOnServerClose(r)
	defer end()
	if err := checkParamNames(r.URL.Query(), "since"); err != nil {
		return err
	}
	p := control.EventsParams{Follow: true}
	since := cmp.Or(r.Header.Get("Last-Event-ID"), r.URL.Query().Get("since"))
	if since != "" {
		n, err := strconv.ParseInt(since, 10, 64)
		if err != nil || n < 0 {
			return invalidValue("since", since, "is not an event number; use a whole number, 0 or more")
		}
		p.AfterSeq = &n
	}
	started := false
	stream := &eventStream{w, connFromContext(r.Context())}
	say := func(text string) error {
		started = true
		return stream.writeEncodedEvents([]byte(text))
	}
	pieces, ended := make(chan control.Event), make(chan error, 1)
	go func() { // this goroutine ends when the request ends
		_, err := v.client.StreamEvents(r.Context(), p, func(e control.Event) error {
			select {
			case pieces <- e:
				return nil
			case <-r.Context().Done():
				return r.Context().Err()
			}
		})
		ended <- err
	}()
	who, err := v.client.Whoami(r.Context(), control.NoParams{})
	if err != nil {
		return err
	}
	client := s.newVisitorClient(v) // use another client, because v.client is busy receiving the events
	defer client.Close()
	poll := time.NewTicker(tickEventInterval)
	defer poll.Stop()
	idle := time.NewTimer(firstHeartbeatDelay)
	defer idle.Stop()
	for err == nil {
		select {
		case <-poll.C:
			// If the session or the right has changed, end the stream. Then the browser reconnects, and the server checks the
			// right again.
			now, err := client.Whoami(r.Context(), control.NoParams{})
			if err != nil || now.Right != who.Right || !s.isSessionValid(r, v) {
				return nil
			}
		case e := <-pieces:
			raw, _ := json.Marshal(e) // encoding an event never fails
			err = say(fmt.Sprintf("id: %d\nevent: %s\ndata: %s\n\n", e.Seq, e.Kind, raw))
		case <-idle.C:
			err = say(": quiet\n\n")
			idle.Reset(eventHeartbeatInterval)
		case err = <-ended:
			if !started && err != nil {
				return err
			}
			return nil
		}
	}
	return nil
}
