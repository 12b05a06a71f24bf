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
	"slices"
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

// templates returns one template set for each page: the layout, the page's main part, and the parts of the
// main part. It parses them at the first call.
var templates = sync.OnceValue(func() map[string]*template.Template {
	all := map[string]*template.Template{}
	layout := template.Must(template.New("layout.html").Funcs(functions).ParseFS(templateFiles, "templates/layout.html"))
	files, _ := fs.Glob(templateFiles, "templates/*.html") // the pattern is valid, so Glob returns no error
	for _, file := range files {
		name := strings.TrimSuffix(strings.TrimPrefix(file, "templates/"), ".html")
		if name != "layout" {
			all[name] = template.Must(template.Must(layout.Clone()).ParseFS(templateFiles, file))
		}
	}
	return all
})

// page holds the data that all pages share.
type page struct {
	Title  string
	At     string // the page's entry in the navigation
	Now    time.Time
	User   string // name of the visitor; "" without a session
	Right  control.Right
	Token  string // token of the page's forms; "" without a session
	Live   string // path of the page's update stream; "" if the page is not updated
	CLI    string // the equivalent command
	Status *control.Status
	Main   any
}

// stillExists reports whether the job that a page shows still exists. For a page without a job it returns
// true.
func (p page) stillExists(ctx context.Context, v *visitor) bool {
	main, ok := p.Main.(jobData)
	if !ok {
		return true
	}
	now, err := v.client.Show(ctx, control.Show{ID: control.Name(main.Job.ID), WithoutEnv: true})
	return !errors.Is(err, queue.ErrNotFound) && (err != nil || now.Seq == main.Job.Seq)
}

// Operates reports whether the visitor may change the jobs of other users.
func (p page) Operates() bool { return p.Token != "" && p.Right.Covers(control.Operate) }

// Owns reports whether the visitor has the rights of a job's owner.
func (p page) Owns(j control.Job) bool {
	owner := j.User
	if j.Submitter != "" {
		owner = j.Submitter
	}
	return p.Operates() || p.Token != "" && p.Right.Covers(control.Submit) && owner == p.User
}

// view is one kind of page.
type view struct {
	name        string // name of its template
	make        func(ctx context.Context, v *visitor, u *url.URL) (page, error)
	parts       []string      // parts that are kept up to date, defined in its template
	query       []string      // names of the accepted query parameters
	minInterval time.Duration // minimum interval between updates; 0 means renderInterval
}

// check returns an error for unknown query parameters, which would otherwise be ignored silently.
func (vw *view) check(u *url.URL) error {
	for name := range u.Query() {
		if slices.Contains(vw.query, name) {
			continue
		}
		if len(vw.query) == 0 {
			return queue.Invalid(queue.Clip(name), "unknown parameter; this page takes none")
		}
		return queue.Invalid(queue.Clip(name), "unknown parameter; this page takes: %s", strings.Join(vw.query, ", "))
	}
	return nil
}

// show returns a handler that replies with a page.
func (s *Server) show(vw *view) func(http.ResponseWriter, *http.Request, *visitor) error {
	return func(w http.ResponseWriter, r *http.Request, v *visitor) error {
		if err := vw.check(r.URL); err != nil {
			return err
		}
		p, err := vw.make(r.Context(), v, r.URL)
		if err != nil {
			return err
		}
		if !r.URL.Query().Has("attempt") { // the output of an earlier attempt no longer changes
			p.Live = "/live?" + url.Values{"page": {r.URL.RequestURI()}}.Encode()
		}
		s.render(w, http.StatusOK, vw.name, p)
		return nil
	}
}

// still returns a handler that replies with a page that is not updated.
func (s *Server) still(name string, make func(context.Context, *visitor, *url.URL) (page, error)) func(
	http.ResponseWriter, *http.Request, *visitor) error {
	return func(w http.ResponseWriter, r *http.Request, v *visitor) error {
		p, err := make(r.Context(), v, r.URL)
		if err == nil {
			s.render(w, http.StatusOK, name, p)
		}
		return err
	}
}

// render replies with a page.
func (s *Server) render(w http.ResponseWriter, status int, name string, p page) {
	p.Now = time.Now()
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	w.Write(execute(name, "layout.html", p))
}

// execute returns the text of a template or of a part of it.
func execute(name, part string, p page) []byte {
	var out bytes.Buffer
	if err := templates()[name].ExecuteTemplate(&out, part, p); err != nil {
		panic("dashboard: " + err.Error())
	}
	return out.Bytes()
}

// message replies with a page that says what is wrong and what to do. For a visitor with access, it includes
// the navigation.
func (s *Server) message(w http.ResponseWriter, r *http.Request, status int, err error) {
	text, todo, _ := strings.Cut(err.Error(), ": queuectl ")
	var p page
	if v, found := s.findVisitor(r); found && status != http.StatusServiceUnavailable {
		v.client = s.clientOf(&v)
		defer v.client.Close()
		if p, err = v.newPage(r.Context(), "", "", ""); err != nil {
			p = page{}
		}
	}
	p.Title, p.Main = http.StatusText(status), messageData{text, todo}
	s.render(w, status, "message", p)
}

// messageData is the data of a message: what is wrong, and the arguments of the command to run. Todo is "" if
// no command helps.
type messageData struct{ Text, Todo string }

// newPage returns a page with the data that all pages for a visitor have.
func (v *visitor) newPage(ctx context.Context, title, at, cli string) (page, error) {
	p := page{Title: title, At: at, CLI: cli, Token: v.token}
	if err := v.setRight(ctx, &p); err != nil {
		return p, err
	}
	st, err := v.client.Status(ctx, control.Nothing{})
	p.Status = &st
	return p, err
}

// setRight sets the visitor's right and name on a page.
func (v *visitor) setRight(ctx context.Context, p *page) error {
	who, err := v.client.Whoami(ctx, control.Nothing{})
	if p.Right = who.Right; p.Token != "" {
		p.User = who.User
	}
	return err
}

// errNoPage returns the error for an unknown path.
func errNoPage(path string) error {
	return queue.Errorf(queue.CodeNotFound, "there is no page %s", queue.Clip(path))
}
