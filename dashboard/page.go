package dashboard

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

//go:embed templates
var templateFiles embed.FS

//go:embed assets
var assetFiles embed.FS

// pageTemplates returns the templates of each page, by the page's name. The templates of a page are the layout, the
// main part of the page, and the parts of the main part. The template files are parsed at the first call.
var pageTemplates = sync.OnceValue(func() map[string]*template.Template {
	all := map[string]*template.Template{}
	files, _ := fs.Glob(templateFiles, "templates/*.html") // never fails, since the pattern is valid
	for _, file := range files {
		name := strings.TrimSuffix(strings.TrimPrefix(file, "templates/"), ".html")
		if name != "layout" {
			all[name] = template.Must(template.New("layout.html").Funcs(templateFuncs).ParseFS(templateFiles,
				"templates/layout.html", file))
		}
	}
	return all
})

// page contains the data that all pages have in common.
type page struct {
	Title      string
	NavEntry   string // entry of the navigation that is highlighted
	Now        time.Time
	User       string // name of the visitor; "" without a session
	Right      control.Right
	Token      string // secret that proves that a form comes from this session; "" without a session
	StreamPath string // path of the event stream that updates the page; "" if the page is not updated
	CLICommand string // queuectl command line that shows the same as the page
	Status     *control.Status
	Content    any // data of the page's main part, such as a jobPageData
}

// jobStillExists reports whether the job that the page shows still exists. It returns true if the page shows no
// job.
func (p page) jobStillExists(ctx context.Context, v *visitor) bool {
	main, ok := p.Content.(jobPageData)
	if !ok {
		return true
	}
	now, err := v.client.ShowJob(ctx, control.JobShowParams{ID: control.JobID(main.Job.ID), HideEnv: true})
	return !errors.Is(err, queue.ErrNotFound) && (err != nil || now.Seq == main.Job.Seq)
}

// MayOperate reports whether the visitor may change the jobs of other users.
func (p page) MayOperate() bool { return p.Token != "" && p.Right.Covers(control.RightOperate) }

// Owns reports whether the visitor may change a job: as the user who enqueued it, or with the right "operate".
func (p page) Owns(j control.Job) bool {
	return p.MayOperate() || p.Token != "" && p.Right.Covers(control.RightSubmit) && j.EnqueuedBy(p.User)
}

// pageView describes one kind of page.
type pageView struct {
	templateName string // name of the page's template
	navEntry     string // entry of the navigation that is highlighted
	title        string // title of the page; fillPage may replace it
	cliCommand   string // queuectl command line that shows the same; fillPage may replace it
	// fillPage sets the content of the page.
	fillPage func(ctx context.Context, v *visitor, u *url.URL, p *page) error
	// updatedPartNames lists the parts of the template that are updated in the browser. If updatedPartNames is nil, the
	// page is not updated, and fillPage itself checks the query parameters.
	updatedPartNames    []string
	acceptedQueryParams []string      // names of the accepted query parameters
	minUpdateInterval   time.Duration // minimum interval between updates; 0 means eventRenderInterval
}

// buildPage returns the page for a URL, as the visitor sees it.
func (vw *pageView) buildPage(ctx context.Context, v *visitor, u *url.URL) (page, error) {
	p, err := v.newPage(ctx)
	p.Title, p.NavEntry, p.CLICommand = vw.title, vw.navEntry, vw.cliCommand
	if err == nil {
		err = vw.fillPage(ctx, v, u, &p)
	}
	return p, err
}

// checkQuery returns an error for a query parameter that the page does not accept.
func (vw *pageView) checkQuery(u *url.URL) error {
	return checkQueryParams(u.Query(), vw.acceptedQueryParams, "this page takes none", "this page takes: ")
}

// pageHandler returns a handler that replies with a page of the view.
func (s *Server) pageHandler(vw *pageView) visitorHandlerFunc {
	return func(w http.ResponseWriter, r *http.Request, v *visitor) error {
		if vw.updatedPartNames != nil {
			if err := vw.checkQuery(r.URL); err != nil {
				return err
			}
		}
		p, err := vw.buildPage(r.Context(), v, r.URL)
		if err != nil {
			return err
		}
		if vw.updatedPartNames != nil && !r.URL.Query().Has("attempt") { // the output of an earlier attempt does not change
			p.StreamPath = "/live?" + url.Values{"page": {r.URL.RequestURI()}}.Encode()
		}
		s.replyPage(w, http.StatusOK, vw.templateName, p)
		return nil
	}
}

// replyPage replies with the page p, rendered with a template, and an HTTP status.
func (s *Server) replyPage(w http.ResponseWriter, status int, templateName string, p page) {
	p.Now = time.Now()
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	w.Write(renderTemplate(templateName, "layout.html", p))
}

// renderTemplate returns the HTML of the page p or, if partName is not "", of one part of it.
func renderTemplate(templateName, partName string, p page) []byte {
	var out bytes.Buffer
	if err := pageTemplates()[templateName].ExecuteTemplate(&out, partName, p); err != nil {
		panic("dashboard: " + err.Error())
	}
	return out.Bytes()
}

// replyErrorPage replies with a page that shows an error and the next step for the user. If the visitor has
// access, the page also contains the navigation.
func (s *Server) replyErrorPage(w http.ResponseWriter, r *http.Request, status int, err error) {
	text, todo, _ := strings.Cut(err.Error(), ": queuectl ")
	var p page
	if v, found := s.findVisitor(r); found && status != http.StatusServiceUnavailable {
		v.client = s.newVisitorClient(&v)
		defer v.client.Close()
		if p, err = v.newPage(r.Context()); err != nil {
			p = page{}
		}
	}
	p.Title, p.Content = http.StatusText(status), errorPageData{text, todo}
	s.replyPage(w, status, "message", p)
}

// errorPageData is the content of a page that shows an error. NextStep contains the arguments of the queuectl
// command that may help; "" if no command helps.
type errorPageData struct{ Text, NextStep string }

// newPage returns a page with the data that all pages of this visitor have in common.
func (v *visitor) newPage(ctx context.Context) (page, error) {
	p := page{Token: v.formToken}
	if err := v.setUserAndRight(ctx, &p); err != nil {
		return p, err
	}
	st, err := v.client.Status(ctx, control.NoParams{})
	p.Status = &st
	return p, err
}

// setUserAndRight sets the fields User and Right of a page.
func (v *visitor) setUserAndRight(ctx context.Context, p *page) error {
	who, err := v.client.Whoami(ctx, control.NoParams{})
	if p.Right = who.Right; p.Token != "" {
		p.User = who.User
	}
	return err
}

// pageNotFoundError returns the error for an unknown path.
func pageNotFoundError(path string) error {
	return queue.Errorf(queue.CodeNotFound, "there is no page %s", queue.ClipForMessage(path))
}
