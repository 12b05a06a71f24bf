package dashboard

import (
	"bytes"
	"cmp"
	"embed"
	"fmt"
	"html/template"
	"io/fs"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// overviewRows is how many jobs of each part the overview has, listRows how many a page of a list has.
const (
	overviewRows = 10
	listRows     = 50
)

//go:embed templates
var templateFiles embed.FS

//go:embed assets
var assetFiles embed.FS

// templates has a tree for each page: the layout with its main part.
var templates = func() map[string]*template.Template {
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
}()

// page is what all pages are made of.
type page struct {
	Title  string
	At     string // which entry of the navigation it is
	Now    time.Time
	User   string // whom it is for, "" for anybody
	Token  string // of its forms, "" without a session
	Status *control.Status
	Main   any
}

// functions are those that templates call.
var functions = template.FuncMap{
	"title":  title,
	"states": func() []string { return stateNames },
	"number": grouped,
	"ago":    ago,
	"span":   func(ms *int64) string { return spanText(ms) },
	"clock":  clock,
	"count":  func(jobs map[string]int64, states ...string) (n int64) { return counted(jobs, states...) },
	"text":   func(s *string) string { return cmp.Or(deref(s), "") },
	"code":   func(n *int64) string { return codeText(n) },
}

// stateNames are the states in the order in which people see them.
var stateNames = []string{"blocked", "held", "pending", "failed", "processing", "completed", "dead", "cancelled"}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func codeText(n *int64) string {
	if n == nil {
		return ""
	}
	return fmt.Sprint(*n)
}

// title is what a job runs, or that it may not be seen.
func title(j control.Job) string {
	switch {
	case slices.Contains(j.Hidden, "command"):
		return ""
	case j.Command != "":
		return j.Command
	}
	return strings.Join(j.Argv, " ")
}

// grouped is a number with commas between its thousands.
func grouped(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// ago is how long before now something was, in at most two units.
func ago(at control.Time, now time.Time) string {
	if at == 0 {
		return ""
	}
	return brief(max(0, now.Sub(queue.Millis(at).Time())))
}

func spanText(ms *int64) string {
	if ms == nil {
		return ""
	}
	return brief(time.Duration(*ms) * time.Millisecond)
}

// brief is a duration in at most two units.
func brief(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Truncate(time.Millisecond).String()
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%02dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// clock is a time of the server's zone.
func clock(at control.Time) string {
	if at == 0 {
		return ""
	}
	return queue.Millis(at).Time().Local().Format("2006-01-02 15:04:05")
}

func counted(jobs map[string]int64, states ...string) (n int64) {
	for _, s := range states {
		n += jobs[s]
	}
	return n
}

// render answers with a page.
func (s *Server) render(w http.ResponseWriter, status int, name string, p page) {
	p.Now = time.Now()
	var out bytes.Buffer
	if err := templates[name].ExecuteTemplate(&out, "layout.html", p); err != nil {
		panic("dashboard: " + err.Error())
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	w.Write(out.Bytes())
}

// message answers with a page that says what is wrong, and what to do.
func (s *Server) message(w http.ResponseWriter, _ *http.Request, status int, err error) {
	text := err.Error()
	said, todo, _ := strings.Cut(text, ": queuectl ")
	s.render(w, status, "message", page{Title: http.StatusText(status), Main: map[string]string{"Text": said, "Todo": todo}})
}

// start is what a page for a visitor begins with.
func (v *visitor) start(r *http.Request, title, at string) (page, error) {
	p := page{Title: title, At: at, Token: v.token}
	who, err := v.client.Whoami(r.Context(), control.Nothing{})
	if err != nil {
		return p, err
	}
	if v.token != "" {
		p.User = who.User
	}
	st, err := v.client.Status(r.Context(), control.Nothing{})
	p.Status = &st
	return p, err
}

// overview is the first page: how the queue stands.
func (s *Server) overview(w http.ResponseWriter, r *http.Request, v *visitor) error {
	p, err := v.start(r, "", "overview")
	if err != nil {
		return err
	}
	screen, err := v.client.Screen(r.Context(), control.ScreenRows{Rows: overviewRows})
	if err != nil {
		return err
	}
	queues, err := v.client.QueueList(r.Context(), control.Queues{})
	if err != nil {
		return err
	}
	p.Status = &screen.Status
	kind, said := verdict(&screen.Status)
	p.Title = said
	p.Main = map[string]any{"Screen": screen, "Queues": queues.Queues, "Kind": kind, "Said": said}
	s.render(w, http.StatusOK, "overview", p)
	return nil
}

// verdict is one sentence on how the queue is, the worst first, and its kind.
func verdict(st *control.Status) (kind, said string) {
	switch {
	case strings.HasPrefix(st.Health, "failing"):
		return "failing", st.Health
	case st.PausedAt != 0:
		return "degraded", "everything is paused, by " + cmp.Or(deref(st.PausedBy), "an operator")
	case st.Draining:
		return "degraded", "draining: nothing starts"
	case st.Health != "ok":
		return "degraded", st.Health
	case st.Workers.Total == 0 && counted(st.Jobs, "pending", "failed") > 0:
		return "degraded", "jobs wait, and there is no worker"
	}
	return "ok", "All is well"
}

// jobs is a page of the list of jobs.
func (s *Server) jobs(w http.ResponseWriter, r *http.Request, v *visitor) error {
	p, err := v.start(r, "Jobs", "jobs")
	if err != nil {
		return err
	}
	q := r.URL.Query()
	ask := control.List{Queue: q.Get("queue"), User: q.Get("user"), Limit: listRows, Cursor: q.Get("cursor")}
	if state := q.Get("state"); state != "" {
		ask.State = control.Texts{state}
	}
	if glob := q.Get("q"); glob != "" {
		ask.IDGlob = glob
	}
	list, err := v.client.List(r.Context(), ask)
	if err != nil {
		return err
	}
	next := maps.Clone(q)
	if next.Del("cursor"); list.Next != nil {
		next.Set("cursor", *list.Next)
	}
	p.Main = map[string]any{"Jobs": list.Jobs, "State": q.Get("state"), "Queue": q.Get("queue"), "User": q.Get("user"), "Q": q.Get("q"), "More": list.Next != nil, "Next": "/jobs?" + next.Encode()}
	s.render(w, http.StatusOK, "jobs", p)
	return nil
}

// job is the page of one job.
func (s *Server) job(w http.ResponseWriter, r *http.Request, v *visitor) error {
	id := r.PathValue("id")
	p, err := v.start(r, id, "jobs")
	if err != nil {
		return err
	}
	d, err := v.client.Show(r.Context(), control.Show{ID: control.Name(id)})
	if err != nil {
		return err
	}
	main := map[string]any{"Job": d}
	if slices.Contains([]string{"blocked", "held", "pending", "failed"}, d.State) {
		why, err := v.client.Why(r.Context(), control.WhyParams{ID: control.Name(id)})
		if err != nil {
			return err
		}
		main["Why"] = why.Reasons
	}
	p.Main = main
	s.render(w, http.StatusOK, "job", p)
	return nil
}
