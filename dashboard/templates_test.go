package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template"
	"text/template/parse"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// fakeQueueAPI is a queue for tests of the pages. If fillsEveryField is true, its replies have a value in every field,
// otherwise in no field. It also determines the right of each visitor.
type fakeQueueAPI struct {
	control.API
	control.Authorizer
	fillsEveryField bool
	hasManyDeadJobs bool   // more dead jobs exist than a page groups, each with another program
	jobState        string // state of every job; "" only if fillsEveryField is false
	hiddenJobPart   string // name of the part that is hidden from the visitor in each job
	visitorRight    control.Right
	visitorName     string // name of the visitor
}

func (f *fakeQueueAPI) CurrentRight(*control.Peer) control.Right             { return f.visitorRight }
func (f *fakeQueueAPI) AdmitConnection(context.Context, *control.Peer) error { return nil }
func (f *fakeQueueAPI) MissingRightError(*control.Peer, string, control.Right) error {
	return queue.ErrDenied
}

// client returns a client of the queue.
func (f *fakeQueueAPI) client() *control.Client {
	many := func() (all, user int) { return 9, 9 }
	return control.NewServer(f, control.ConnectionLimits{MaxConnections: many}, f, control.NewUserLimits(),
		slog.New(slog.DiscardHandler)).InProcessClientAs(control.Peer{})
}

// newFakeReply returns the result of an API method. If f.fillsEveryField is true, every field has a value.
func newFakeReply[T any](f *fakeQueueAPI) (v T, err error) {
	if f.fillsEveryField {
		f.fillValue(reflect.ValueOf(&v).Elem(), "")
	}
	return v, nil
}

// fillValue sets the value v and all values inside v. fieldName is the name of the field that contains v.
func (f *fakeQueueAPI) fillValue(v reflect.Value, fieldName string) {
	switch special := map[string]string{"State": f.jobState, "HiddenParts": f.hiddenJobPart, "User": "ann",
		"Health": "degraded: no worker",
		"Cron":   "@reboot"}[fieldName]; {
	case v.Type() == reflect.TypeFor[control.Time]():
		v.SetInt(time.Now().Add(time.Hour).UnixMilli())
	case v.Type() == reflect.TypeFor[control.RetentionAge](), v.Type() == reflect.TypeFor[control.Duration]():
		v.SetInt(int64(time.Hour))
	case v.Type() == reflect.TypeFor[json.RawMessage]():
		v.SetBytes([]byte(`{"text":1}`))
	case v.Kind() == reflect.String && special != "":
		v.SetString(special)
	case v.Kind() == reflect.String:
		v.SetString("text")
	case v.Kind() == reflect.Bool:
		v.SetBool(true)
	case v.CanInt():
		v.SetInt(2)
	case v.CanFloat():
		v.SetFloat(0.5)
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fillValue(v.Elem(), fieldName)
	case v.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		f.fillValue(v.Index(0), fieldName) // the second element has no values
	case v.Kind() == reflect.Map && v.Type().Elem().Kind() != reflect.Interface:
		v.Set(reflect.MakeMap(v.Type()))
		for _, key := range append(queue.StateNames(queue.States()), "text") {
			value := reflect.New(v.Type().Elem()).Elem()
			f.fillValue(value, fieldName)
			v.SetMapIndex(reflect.ValueOf(key), value)
		}
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			f.fillValue(v.Field(i), v.Type().Field(i).Name)
		}
	}
}

func (f *fakeQueueAPI) Whoami(context.Context, control.NoParams) (control.WhoamiResult, error) {
	return control.WhoamiResult{User: f.visitorName, Right: f.visitorRight}, nil
}

func (f *fakeQueueAPI) Status(context.Context, control.NoParams) (control.Status, error) {
	return newFakeReply[control.Status](f)
}

func (f *fakeQueueAPI) ReadOverviewScreen(context.Context, control.OverviewScreenParams) (control.OverviewScreen,
	error) {
	return newFakeReply[control.OverviewScreen](f)
}

func (f *fakeQueueAPI) ListQueues(context.Context, control.QueueListParams) (control.QueueList, error) {
	return newFakeReply[control.QueueList](f)
}

func (f *fakeQueueAPI) ReadStats(context.Context, control.StatsParams) (control.Stats, error) {
	return newFakeReply[control.Stats](f)
}

func (f *fakeQueueAPI) ListJobs(context.Context, control.JobListParams) (control.JobPage, error) {
	return newFakeReply[control.JobPage](f)
}

func (f *fakeQueueAPI) ShowJob(context.Context, control.JobShowParams) (control.JobDetail, error) {
	d, err := newFakeReply[control.JobDetail](f)
	if f.fillsEveryField { // if fields have values, add a successful attempt to the failed one and the running one
		d.History = append(d.History, control.Attempt{FinishedAt: 1, ExitCode: new(int64)})
	}
	return d, err
}

func (f *fakeQueueAPI) ExplainWaiting(context.Context, control.ExplainWaitingParams) (control.WaitingExplanation,
	error) {
	w, err := newFakeReply[control.WaitingExplanation](f)
	if f.jobState == queue.Pending.String() {
		w.Reasons = nil
	}
	return w, err
}

// ReadDependencyTree returns a chain of two dependants, the second of which has more dependants than a page shows.
func (f *fakeQueueAPI) ReadDependencyTree(context.Context, control.DependencyTreeParams) (control.DependencyTree,
	error) {
	t, err := newFakeReply[control.DependencyTree](f)
	if f.fillsEveryField {
		t.Jobs[0].Seq, t.Jobs[1] = 1, control.DependencyTreeJob{ID: "child", Seq: 2, State: f.jobState}
		t.Dependencies[0].ParentSeq, t.Dependencies[0].ChildSeq, t.Dependencies[1].ParentSeq, t.Dependencies[1].ChildSeq = 1,
			2, 3, 1
		for child := range int64(maxTreeBranches) {
			t.Dependencies = append(t.Dependencies, control.JobDependency{ParentSeq: 2, ChildSeq: child + 4})
		}
	}
	return t, err
}

func (f *fakeQueueAPI) StreamOutput(_ context.Context, _ control.JobOutputParams,
	handlePiece func(control.OutputPiece) error) (
	control.OutputStreamEnd, error) {
	var err error
	for _, p := range []control.OutputPiece{{Stream: "stdout", Text: "\x1b[31mred\x1b[0m\n"}, {Stream: "stderr",
		Text: "err\n"},
		{Stream: "stdout", DroppedBytes: 7}} {
		if f.fillsEveryField && err == nil {
			err = handlePiece(p)
		}
	}
	return control.OutputStreamEnd{}, err
}

func (f *fakeQueueAPI) ListDeadJobs(_ context.Context, p control.DeadJobListParams) (control.JobPage, error) {
	page, err := newFakeReply[control.JobPage](f)
	if !f.hasManyDeadJobs {
		page.NextCursor = nil
		return page, err
	}
	like := page.Jobs[0]
	page.Jobs = nil
	for i := range maxDeadJobs / 2 {
		page.Jobs = append(page.Jobs, control.Job{ID: "text", User: like.User, Error: like.Error,
			Command: fmt.Sprintf("%s-%d text", p.Cursor, i)})
	}
	page.NextCursor = new(p.Cursor + "1")
	return page, err
}

func (f *fakeQueueAPI) ListSchedules(context.Context, control.ScheduleListParams) (control.SchedulePage, error) {
	page, err := newFakeReply[control.SchedulePage](f)
	if f.fillsEveryField {
		page.Schedules[1].Name = "active"
	}
	return page, err
}

func (f *fakeQueueAPI) ShowSchedule(_ context.Context, p control.ScheduleNameParams) (control.ScheduleDetail, error) {
	d, err := newFakeReply[control.ScheduleDetail](f)
	d.Paused = p.Name != "active"
	return d, err
}

func (f *fakeQueueAPI) ListWorkers(context.Context, control.NoParams) (control.WorkerList, error) {
	return newFakeReply[control.WorkerList](f)
}

func (f *fakeQueueAPI) CancelJobs(context.Context, control.JobSelection) (control.BulkResult, error) {
	n := 0
	if f.fillsEveryField {
		n = 2
	}
	return control.BulkResult{SelectedCount: &n}, nil
}

// templateBranchMarkPattern matches the marks that markedTemplates adds to the templates.
var templateBranchMarkPattern = regexp.MustCompile("\x00([^\x00]*)\x00")

// markedTemplates returns the templates of the pages with marks, and a list of all marks. A mark is a text at the
// beginning of each list of template nodes, such as a branch of an if. The marks in a rendered page show which branches
// were executed.
func markedTemplates(t *testing.T) (byName map[string]*template.Template, marks []string) {
	byName = map[string]*template.Template{}
	seen := map[*parse.ListNode]bool{}
	files, _ := fs.Glob(templateFiles, "templates/*.html")
	for _, file := range files {
		set := template.Must(template.New("layout.html").Funcs(template.FuncMap(templateFuncs)).ParseFS(templateFiles,
			"templates/layout.html", file))
		for _, part := range set.Templates() {
			walkNodeLists(part.Root, func(l *parse.ListNode) {
				uses := func(n parse.Node) bool { return n.Type() != parse.NodeText }
				if seen[l] || !slices.ContainsFunc(l.Nodes, uses) {
					return // the list uses neither a field nor a function
				}
				seen[l] = true
				mark, _ := part.ErrorContext(l.Nodes[0]) // the position in the file
				if !slices.Contains(marks, mark) {
					marks = append(marks, mark)
				}
				l.Nodes = slices.Insert(l.Nodes, 0, parse.Node(&parse.TextNode{NodeType: parse.NodeText,
					Text: []byte("\x00" + mark + "\x00")}))
			})
		}
		byName[strings.TrimSuffix(strings.TrimPrefix(file, "templates/"), ".html")] = set
	}
	return byName, marks
}

// walkNodeLists calls visit for a list of nodes and for all lists inside it, the inner lists first.
func walkNodeLists(l *parse.ListNode, visit func(*parse.ListNode)) {
	if l == nil {
		return
	}
	for _, n := range l.Nodes {
		var b *parse.BranchNode
		switch n := n.(type) {
		case *parse.IfNode:
			b = &n.BranchNode
		case *parse.RangeNode:
			b = &n.BranchNode
		case *parse.WithNode:
			b = &n.BranchNode
		default:
			continue
		}
		walkNodeLists(b.List, visit)
		walkNodeLists(b.ElseList, visit)
	}
	visit(l)
}

// Every field and function that a template uses exists. The test executes every branch of every template. To do so, it
// renders all pages and their updated parts: with and without values in the replies, for every state of a job, and for
// visitors with different rights.
func TestTemplatesUseExistingFields(t *testing.T) {
	marked, unused := markedTemplates(t)
	render := func(name, path string, parts []string, p page) {
		p.Now, p.StreamPath = time.Now(), "/live"
		for _, part := range append(parts, "layout.html") {
			renderTemplate(name, part, p)
			var out strings.Builder
			if err := marked[name].ExecuteTemplate(&out, part, p); err != nil {
				t.Errorf("%s: %v", path, err)
			}
			for _, mark := range templateBranchMarkPattern.FindAllStringSubmatch(out.String(), -1) {
				unused = slices.DeleteFunc(unused, func(m string) bool { return m == mark[1] })
			}
		}
	}
	queues := []*fakeQueueAPI{{visitorRight: control.RightOperate, visitorName: "ann"},
		{visitorRight: control.RightSubmit, visitorName: "bob"},
		{fillsEveryField: true, jobState: "dead", hiddenJobPart: "command", visitorRight: control.RightSubmit,
			visitorName: "bob"},
		{fillsEveryField: true, jobState: "dead", visitorRight: control.RightSubmit, visitorName: "ann"}}
	for _, state := range queue.StateNames(queue.States()) {
		queues = append(queues, &fakeQueueAPI{fillsEveryField: true, jobState: state, visitorRight: control.RightOperate,
			visitorName: "bob"})
	}
	for _, f := range queues {
		for _, token := range []string{"", "token"} {
			v := &visitor{session: session{formToken: token}, client: f.client()}
			defer v.client.Close()
			for path, vw := range viewsByPath {
				path = strings.NewReplacer("{$}", "", "{id...}", "text").Replace(path)
				for _, query := range []string{"", "did=retry&n=2&q=text&error=text&attempt=2&state=dead",
					"error=text&command=text", "error=none"} {
					p, err := vw.buildPage(t.Context(), v, &url.URL{Path: path, RawQuery: query})
					if err != nil {
						t.Fatalf("%s: %v", path, err)
					}
					render(vw.templateName, path, append([]string{"deadcount"}, vw.updatedPartNames...), p)
				}
			}
			for path, make := range map[string]func(context.Context, *visitor, *url.URL) (page, error){
				"/bulk?verb=cancel&n=2": bulkPreviewView.buildPage, "/bulk?verb=cancel&id=a&id=b&id=c": bulkPreviewView.buildPage,
				"/dead/retry?again=": deadPreviewView.buildPage, "/dead/rm?error=text": deadPreviewView.buildPage} {
				u, _ := url.Parse(path)
				p, err := make(t.Context(), v, u)
				switch {
				case err == nil && u.Path == "/bulk":
					render("bulk", path, nil, p)
				case err == nil:
					render("dead_action", path, nil, p)
				case f.fillsEveryField || !errors.Is(err, queue.ErrNotFound): // without values, there is no dead job
					t.Fatalf("%s: %v", path, err)
				}
			}
		}
	}
	// Also render a page for more dead jobs than it can group.
	v := &visitor{client: (&fakeQueueAPI{fillsEveryField: true, hasManyDeadJobs: true, jobState: "dead",
		visitorRight: control.RightOperate}).client()}
	defer v.client.Close()
	for _, query := range []string{"", "error=text", "error=none"} {
		p, err := viewsByPath["/dead"].buildPage(t.Context(), v, &url.URL{RawQuery: query})
		if err != nil {
			t.Fatal(err)
		}
		render("dead", "/dead", []string{"list"}, p)
	}
	for _, todo := range []string{"", "web open"} {
		render("message", "a message", nil, page{Title: "Not found", Content: errorPageData{"no session", todo}})
	}
	render("open", "/open", nil, page{Title: "Open", Content: "secret"})
	for _, mark := range unused {
		t.Errorf("%s: the test did not execute this branch", mark)
	}
}
