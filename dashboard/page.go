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

// templates has a set for each page: the layout, its main part, and the parts of that. It is made when it is asked for.
var templates = sync.OnceValue(func() map[string]*template.Template {
	all := map[string]*template.Template{}
	layout := template.Must(template.New("layout.html").Funcs(functions).ParseFS(templateFiles, "templates/layout.html"))
	files, _ := fs.Glob(templateFiles, "templates/*.html") // the pattern is sound
	for _, file := range files {
		name := strings.TrimSuffix(strings.TrimPrefix(file, "templates/"), ".html")
		if name != "layout" {
			all[name] = template.Must(template.Must(layout.Clone()).ParseFS(templateFiles, file))
		}
	}
	return all
})

// page is what all pages are made of.
type page struct {
	Title  string
	At     string // which entry of the navigation it is
	Now    time.Time
	User   string // whom it is for, "" for anybody
	Right  control.Right
	Token  string // of its forms, "" without a session
	Live   string // where it is kept up to date, "" if it is not
	CLI    string // the command that shows the same
	Status *control.Status
	Main   any
}

// stands reports whether what a page is of is there still, and the same.
func (p page) stands(ctx context.Context, v *visitor) bool {
	main, _ := p.Main.(map[string]any)
	was, is := main["Job"].(control.JobDetail)
	if !is {
		return true
	}
	now, err := v.client.Show(ctx, control.Show{ID: control.Name(was.ID), WithoutEnv: true})
	return !errors.Is(err, queue.ErrNotFound) && (err != nil || now.Seq == was.Seq)
}

// Operates reports whether whom the page is for may change what is others'.
func (p page) Operates() bool { return p.Token != "" && p.Right.Covers(control.Operate) }

// Owns reports whether whom the page is for may do with a job what its owner may.
func (p page) Owns(j control.Job) bool {
	owner := j.User
	if j.Submitter != "" {
		owner = j.Submitter
	}
	return p.Operates() || p.Token != "" && p.Right.Covers(control.Submit) && owner == p.User
}

// view is one kind of page.
type view struct {
	name  string // of its template
	make  func(ctx context.Context, v *visitor, u *url.URL) (page, error)
	parts []string      // that are kept up to date, as its template defines them
	query []string      // the parameters that it knows
	each  time.Duration // how often its parts are made anew at most, 0 for renderEach
}

// check refuses an unknown parameter, which would be ignored silently.
func (is *view) check(u *url.URL) error {
	for name := range u.Query() {
		if slices.Contains(is.query, name) {
			continue
		}
		if len(is.query) == 0 {
			return queue.Invalid(queue.Clip(name), "unknown parameter; this page takes none")
		}
		return queue.Invalid(queue.Clip(name), "unknown parameter; this page takes: %s", strings.Join(is.query, ", "))
	}
	return nil
}

// show answers with a page.
func (s *Server) show(is *view) func(http.ResponseWriter, *http.Request, *visitor) error {
	return func(w http.ResponseWriter, r *http.Request, v *visitor) error {
		if err := is.check(r.URL); err != nil {
			return err
		}
		p, err := is.make(r.Context(), v, r.URL)
		if err != nil {
			return err
		}
		if !r.URL.Query().Has("attempt") { // what an earlier one has printed is all there
			p.Live = "/live?" + url.Values{"page": {r.URL.RequestURI()}}.Encode()
		}
		s.render(w, http.StatusOK, is.name, p)
		return nil
	}
}

// render answers with a page.
func (s *Server) render(w http.ResponseWriter, status int, name string, p page) {
	p.Now = time.Now()
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	w.Write(execute(name, "layout.html", p))
}

// execute is the text of a template, or of a part of it.
func execute(name, part string, p page) []byte {
	var out bytes.Buffer
	if err := templates()[name].ExecuteTemplate(&out, part, p); err != nil {
		panic("dashboard: " + err.Error())
	}
	return out.Bytes()
}

// message answers with a page that says what is wrong, and what to do, from where whoever is let in can go on.
func (s *Server) message(w http.ResponseWriter, r *http.Request, status int, err error) {
	said, todo, _ := strings.Cut(err.Error(), ": queuectl ")
	var p page
	if v, found := s.visitorOf(r); found && status != http.StatusServiceUnavailable {
		v.client = s.clientOf(&v)
		defer v.client.Close()
		if p, err = v.begin(r.Context(), "", "", ""); err != nil {
			p = page{}
		}
	}
	p.Title, p.Main = http.StatusText(status), map[string]string{"Text": said, "Todo": todo}
	s.render(w, status, "message", p)
}

// begin is what a page for a visitor begins with.
func (v *visitor) begin(ctx context.Context, title, at, cli string) (page, error) {
	p := page{Title: title, At: at, CLI: cli, Token: v.token}
	if err := v.knownTo(ctx, &p); err != nil {
		return p, err
	}
	st, err := v.client.Status(ctx, control.Nothing{})
	p.Status = &st
	return p, err
}

// knownTo has a page know whom it is for.
func (v *visitor) knownTo(ctx context.Context, p *page) error {
	who, err := v.client.Whoami(ctx, control.Nothing{})
	if p.Right = who.Right; p.Token != "" {
		p.User = who.User
	}
	return err
}

// errNoPage refuses a path.
func errNoPage(path string) error {
	return queue.Errorf(queue.CodeNotFound, "there is no page %s", queue.Clip(path))
}
