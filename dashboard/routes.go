package dashboard

import (
	"io/fs"
	"net/http"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// registerRoutes registers the handlers of all paths. A handler that changes something accepts only POST requests that
// contain the form token of the session.
func (s *Server) registerRoutes(mux *http.ServeMux) {
	for path, vw := range viewsByPath {
		mux.HandleFunc("GET "+path, s.visitorHandler(s.pageHandler(vw)))
	}
	for path, answer := range map[string]visitorHandlerFunc{
		"GET /live":             s.serveLivePage,
		"GET /bulk":             s.pageHandler(bulkPreviewView),
		"GET /dead/{verb}":      s.pageHandler(deadPreviewView),
		"GET /metrics":          s.serveMetrics,
		"GET /api/summary":      s.serveSummary,
		"GET /api/events":       s.serveEvents,
		"GET /api/openapi.json": s.serveOpenAPI,
		"GET /api/{method}":     s.serveAPIMethod,
		"POST /leave":           s.signOut,
		"POST /bulk":            s.formHandler(handleBulkAction),
		"POST /dead/{verb}":     s.formHandler(handleDeadJobsAction, "error", "command", "program", "shown", "timeout", "n"),
		"POST /jobs/{id...}":    s.formHandler(handleJobAction, "verb"),
		"GET /job":              s.pageHandler(viewsByPath["/jobs/{id...}"]),
		"POST /job":             s.formHandler(handleJobAction, "verb"),
		"POST /workers":         s.formHandler(handleScaleWorkers, "n"),
		"POST /queues":          s.formHandler(handleQueueAction, "queue", "verb", "reason"),
		"POST /schedules":       s.formHandler(handleScheduleAction, "schedule", "verb"),
	} {
		mux.HandleFunc(path, s.visitorHandler(answer))
	}
	mux.HandleFunc("GET /open", s.serveSignInPage)
	mux.HandleFunc("POST /open", s.signIn)
	assets, _ := fs.Sub(assetFiles, "assets") // never fails, since the directory is embedded
	files := http.StripPrefix("/assets/", http.FileServerFS(assets))
	mux.HandleFunc("GET /assets/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=300")
		files.ServeHTTP(w, r)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		allowed := acceptedHTTPMethods(mux, r)
		if allowed == nil {
			s.replyError(w, r, pageNotFoundError(r.URL.Path))
			return
		}
		list := strings.Join(allowed, ", ")
		w.Header().Set("Allow", list)
		s.replyErrorStatus(w, r, http.StatusMethodNotAllowed,
			queue.InvalidFieldError("method", "%s is not allowed for this path; use %s", queue.ClipForMessage(r.Method), list))
	})
}

// acceptedHTTPMethods returns the HTTP methods that the path of a request accepts, or nil if the path does not exist.
// It ignores methods for which the mux only redirects to the path with a trailing slash.
func acceptedHTTPMethods(mux *http.ServeMux, r *http.Request) (methods []string) {
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		other := r.Clone(r.Context())
		other.Method = method
		handler, pattern := mux.Handler(other)
		_, registered := handler.(http.HandlerFunc)
		name, isAPI := strings.CutPrefix(r.URL.Path, "/api/")
		if !registered || pattern == "/" || isAPI && strings.HasSuffix(pattern, "{method}") &&
			control.FindReadOnlyMethod(name) == nil {
			continue
		}
		if methods = append(methods, method); method == http.MethodGet {
			methods = append(methods, http.MethodHead)
		}
	}
	return methods
}

// visitorHandlerFunc handles a request of a visitor. If it returns an error, it has written no response.
type visitorHandlerFunc func(http.ResponseWriter, *http.Request, *visitor) error

// visitorHandler returns a handler that calls handle if the sender of the request has access (see findVisitor). It
// rejects all other requests.
func (s *Server) visitorHandler(handle visitorHandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, found := s.findVisitor(r)
		if r.URL.Path == "/metrics" && v.formToken == "" { // a separate setting admits clients that read metrics
			c := s.config.Load()
			v, found = visitor{session: session{peer: s.options.MetricsScraperPeer}}, c.AllowsAnonymousMetrics &&
				c.isLocalRequest(r)
		}
		if !found {
			s.replyErrorStatus(w, r, http.StatusUnauthorized, errNoSession)
			return
		}
		v.client = s.newVisitorClient(&v)
		defer v.client.Close()
		if err := handle(w, r, &v); err != nil {
			s.replyError(w, r, err)
		}
	}
}

// serveSignInPage shows the page to which a sign-in link leads. A link works only once, so opening the page does not
// use up the link: the visitor must click a button on the page. Otherwise programs that open links, for example to show
// a preview, would use the link up.
func (s *Server) serveSignInPage(w http.ResponseWriter, r *http.Request) {
	s.replyPage(w, http.StatusOK, "open", page{Title: "Open", Content: r.URL.Query().Get("link")})
}

// signIn starts a session for a browser whose visitor has clicked the button on the page of a sign-in link.
func (s *Server) signIn(w http.ResponseWriter, r *http.Request) {
	secret, err := s.sessions.signIn(r.PostFormValue("link"), requestHostName(r))
	if err != nil {
		s.replyError(w, r, err)
		return
	}
	s.setSessionCookie(w, r, secret)
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// signOut ends a session.
func (s *Server) signOut(w http.ResponseWriter, r *http.Request, v *visitor) error {
	if !v.hasFormToken(r.PostFormValue("token")) {
		return errWrongFormToken
	}
	s.sessions.signOut(r, s.sessionCookieName(r))
	s.setSessionCookie(w, r, "")
	http.Redirect(w, r, "/", http.StatusSeeOther)
	return nil
}

// errWrongFormToken is the error for a form with the token of another session.
var errWrongFormToken = queue.Errorf(queue.CodeDenied,
	"this form belongs to another session; reload the page and try again")
