package api

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/internal/testrig"
)

// parseMetrics returns the metrics in a text, by name.
func parseMetrics(q *testrig.Harness, text string) map[string]*dto.MetricFamily {
	q.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		q.Fatalf("%v; the text is %s", err, text)
	}
	return families
}

// metricWithLabels returns the metric in a family that has all given labels, each written as NAME=VALUE. It
// returns nil if there is no such metric.
func metricWithLabels(f *dto.MetricFamily, labels ...string) *dto.Metric {
next:
	for _, m := range f.GetMetric() {
		for _, want := range labels {
			found := false
			for _, l := range m.GetLabel() {
				found = found || l.GetName()+"="+l.GetValue() == want
			}
			if !found {
				continue next
			}
		}
		return m
	}
	return nil
}

// Metrics count finished work by queue and outcome, also across restarts, and report the current
// state of the queue.
func TestMetricsReportOutcomesAndQueueState(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	q.MustRunCLI("enqueue", "--id", "a", "-Q", "build", "sleep 0.1")
	q.MustRunCLI("enqueue", "--id", "b", "-Q", "build", "--max-retries", "1", "--backoff-base", "0.01", "exit 3")
	q.MustRunCLI("enqueue", "--id", "c", "--in", "1h", "true")
	q.RunCLI("wait", "a", "b")
	q.KillService()
	q.StartService("--workers", "2")
	q.MustRunCLI("enqueue", "--id", "d", "-Q", "build", "true")
	q.MustRunCLI("wait", "d")
	families := parseMetrics(q, q.MustRunCLI("metrics")+"\n")
	for _, c := range []struct {
		name   string
		labels []string
		want   float64
	}{
		{"queuectl_attempts_started_total", []string{"queue=build"}, 4},
		{"queuectl_attempts_ended_total", []string{"queue=build", "outcome=completed"}, 2},
		{"queuectl_attempts_ended_total", []string{"queue=build", "outcome=failed"}, 1},
		{"queuectl_attempts_ended_total", []string{"queue=build", "outcome=dead"}, 1},
		{"queuectl_jobs", []string{"state=pending"}, 1}, {"queuectl_jobs", []string{"state=dead"}, 1},
		{"queuectl_workers", []string{"state=idle"}, 2}, {"queuectl_healthy", nil, 1},
		{"queuectl_jobs_enqueued_total", nil, 4}, {"queuectl_queue_waiting", []string{"queue=default"}, 1},
	} {
		m := metricWithLabels(families[c.name], c.labels...)
		if m == nil || m.GetGauge().GetValue()+m.GetCounter().GetValue() != c.want {
			t.Errorf("%s %v is %v, want %v", c.name, c.labels, m, c.want)
		}
	}
	runs := metricWithLabels(families["queuectl_attempt_run_seconds"], "queue=build").GetHistogram()
	if runs.GetSampleCount() != 4 || runs.GetSampleSum() < 0.1 || runs.GetSampleSum() > 60 {
		t.Errorf("the runs are %v", runs)
	}
	var list []struct {
		Name, Type string
		Metrics    []struct{ Value *float64 }
	}
	if err := json.Unmarshal([]byte(q.MustRunCLI("metrics", "--json")), &list); err != nil || len(list) < 10 {
		t.Errorf("metrics --json lists %d metrics, %v", len(list), err)
	}
	for _, m := range list {
		if m.Type == "gauge" && len(m.Metrics) > 0 && m.Metrics[0].Value == nil {
			t.Errorf("%s has no value", m.Name)
		}
	}
	q.MustRunCLI("metrics", "--textfile", q.Path("queue.prom"))
	if info, err := os.Stat(q.Path("queue.prom")); err != nil || info.Mode().Perm() != 0o644 || info.Size() < 1000 {
		t.Errorf("the file is %v, %v", info, err)
	}
	if got := q.RunCLI("metrics", "--textfile", q.Path("none/queue.prom")); got.ExitCode != 2 ||
		!strings.Contains(got.Stderr, "mkdir -p "+q.Path("none")) {
		t.Errorf("metrics --textfile in a missing directory: %+v", got)
	}
	if err := errors.Join(syscall.Mkfifo(q.Path("pipe"), 0o600), os.Symlink("queue.prom", q.Path("link"))); err != nil {
		t.Fatal(err)
	}
	if got := q.RunCLI("metrics", "--textfile", q.Path("pipe")); got.ExitCode != 2 ||
		!strings.Contains(got.Stderr, "is not a regular file") {
		t.Errorf("metrics --textfile at the path of a pipe: %+v", got)
	}
	q.MustRunCLI("metrics", "--textfile", q.Path("link"))
	for path, kind := range map[string]os.FileMode{"pipe": os.ModeNamedPipe, "link": os.ModeSymlink} {
		if info, err := os.Lstat(q.Path(path)); err != nil || info.Mode().Type() != kind {
			t.Errorf("%s is %v, %v", path, info, err)
		}
	}
}

// A command writes metrics to a file (textfile). If the service is stopped or does not reply, the file reports
// it as unhealthy and does not keep the last values. The command then also fails, so that the log of the timer
// that runs the command contains the reason.
func TestTextfileReportsStoppedServiceUnhealthy(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	healthy := func() float64 {
		raw, err := os.ReadFile(q.Path("queue.prom"))
		if err != nil {
			t.Fatal(err)
		}
		families := parseMetrics(q, string(raw))
		if n := len(families["queuectl_build_info"].GetMetric()); n > 0 &&
			metricWithLabels(families["queuectl_healthy"]).GetGauge().GetValue() == 0 {
			t.Errorf("the textfile of a service that did not answer has %d versions", n)
		}
		return metricWithLabels(families["queuectl_healthy"]).GetGauge().GetValue()
	}
	q.MustRunCLI("metrics", "--textfile", q.Path("queue.prom"))
	if got := healthy(); got != 1 {
		t.Fatalf("queuectl_healthy of a running service is %v, want 1", got)
	}
	q.KillService()
	if got := q.RunCLI("metrics", "--textfile", q.Path("queue.prom")); got.ExitCode == 0 || got.Stderr == "" {
		t.Errorf("with the service stopped: %+v, want an error", got)
	}
	if got := healthy(); got != 0 {
		t.Errorf("queuectl_healthy of a stopped service is %v, want 0", got)
	}
}

// Metrics report at most a hundred queues by name and combine the others, because users choose the
// names and the number of queues.
func TestMetricsNameAtMostHundredQueues(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	var list bytes.Buffer
	for i := range 1000 {
		fmt.Fprintf(&list, `{"command":"true","queue":"q%d"}`+"\n", i)
	}
	q.MustRunCLI("enqueue", "--file", q.WriteFile("list.jsonl", list.String()))
	families := parseMetrics(q, q.MustRunCLI("metrics")+"\n")
	if n := len(families["queuectl_queue_waiting"].GetMetric()); n > 101 {
		t.Errorf("%d queues have their own metric, want at most 101", n)
	}
	if m := metricWithLabels(families["queuectl_queue_waiting"], "queue=(others)"); m.GetGauge().GetValue() < 899 {
		t.Errorf("the metric of the other queues is %v", m)
	}
}

// The page /metrics requires a login session, except for local clients if web.metrics_anonymous is set. A
// client that requests native histograms gets them.
func TestMetricsPageRequiresLogin(t *testing.T) {
	b := testrig.OpenBrowser(testrig.StartQueue(t, "--workers", "1"))
	b.MustRunCLI("enqueue", "--id", "a", "true")
	b.MustRunCLI("wait", "a")
	if got := b.SendRequest("GET", "/metrics", ""); got.StatusCode != http.StatusUnauthorized {
		t.Errorf("a request without a session gets %+v", got)
	}
	b.MustRunCLI("config", "set", "web.metrics_anonymous", "true")
	if got := b.SendRequest("GET", "/metrics", ""); got.StatusCode != http.StatusOK ||
		!strings.Contains(got.Body, "queuectl_build_info") {
		t.Errorf("with metrics_anonymous: %+v", got)
	}
	for _, path := range []string{"/", "/api/status", "/jobs"} {
		if got := b.SendRequest("GET", path, ""); got.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s gets %d", path, got.StatusCode)
		}
	}
	if got := b.SendRequest("GET", "/metrics", "", testrig.WithRequestHeader("X-Forwarded-For",
		"10.0.0.1")); got.StatusCode != http.StatusUnauthorized {
		t.Errorf("a request that a proxy forwards: %+v", got)
	}
	got := b.SendRequest("GET", "/metrics", "", testrig.WithRequestHeader("Accept",
		"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"))
	in := expfmt.NewDecoder(bufio.NewReader(strings.NewReader(got.Body)), expfmt.NewFormat(expfmt.TypeProtoDelim))
	native := false
	for {
		var f dto.MetricFamily
		if err := in.Decode(&f); err != nil {
			break
		}
		if f.GetName() == "queuectl_attempt_run_seconds" {
			h := metricWithLabels(&f, "queue=default").GetHistogram()
			native = h.GetSchema() == 1 && len(h.GetPositiveSpan()) == 1 && h.GetPositiveDelta()[0] == 1 &&
				h.GetSampleCount() == 1
		}
	}
	if !native {
		t.Errorf("no native histogram in the response with the header %q", got.Header)
	}
}

// Prometheus accepts the metrics, and loads the shipped scrape configuration and alert rules. Every
// query of the shipped Grafana dashboard returns data, whether Prometheus stores classic or native
// histograms.
func TestPrometheusReadsTheMetrics(t *testing.T) {
	skip.UnlessProgram(t, "prometheus", "needs prometheus; .ci/run installs it, "+
		"and TestMetricsReportOutcomesAndQueueState reads the text with the parser of Prometheus")
	const shipped = "../../packaging/monitoring"
	if _, err := os.Stat(shipped); err != nil {
		skip.MissingRequirement(t, "sources", "needs the rules, which are with the sources; make test-long has them")
	}
	for _, args := range [][]string{{"check", "config", shipped + "/prometheus.yml"},
		{"test", "rules", shipped + "/queuectl.test.yml"}} {
		if out, err := exec.Command("promtool", args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
	b := testrig.OpenBrowser(testrig.StartQueue(t, "--workers", "1"))
	b.MustRunCLI("config", "set", "web.metrics_anonymous", "true")
	lint := exec.Command("promtool", "check", "metrics")
	lint.Stdin = strings.NewReader(b.MustRunCLI("metrics") + "\n")
	if out, err := lint.CombinedOutput(); err != nil || len(bytes.TrimSpace(out)) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
	rules, err := filepath.Abs(shipped + "/queuectl.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	exprs := dashboardQueries(t, shipped+"/grafana.json")
	classic := startPrometheus(b, rules)
	native := startPrometheus(b, rules, "--enable-feature=native-histograms")
	for name, p := range map[string]*prometheusServer{"classic": classic, "native": native} {
		b.WaitUntil("Prometheus reads the metrics twice while jobs end", 60*time.Second, func() bool {
			b.MustRunCLI("enqueue", "-q", "true")
			n, err := p.countSeries(`sum(increase(queuectl_attempts_ended_total[20s])) > 0`)
			return err == nil && n > 0
		})
		for _, expr := range exprs {
			if n, err := p.countSeries(expr); err != nil || n == 0 {
				t.Errorf("%s histograms: %s has %d results, %v", name, expr, n, err)
			}
		}
	}
	if n, err := native.countSeries("queuectl_attempt_run_seconds_bucket"); err != nil || n != 0 {
		t.Errorf("the native server has %d classic series, %v; want none, since the dashboard must not need them", n, err)
	}
	classic.checkAlertRules()
}

// dashboardQueries returns the queries of a Grafana dashboard. It replaces their variables.
func dashboardQueries(t *testing.T, path string) (queries []string) {
	t.Helper()
	var dashboard struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	raw, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(raw, &dashboard)
	}
	if err != nil || len(dashboard.Panels) < 10 {
		t.Fatalf("%s: %d panels, %v", path, len(dashboard.Panels), err)
	}
	variables := strings.NewReplacer("$__rate_interval", "20s", "$instance", ".+")
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			queries = append(queries, variables.Replace(target.Expr))
		}
	}
	return queries
}

// prometheusServer is a Prometheus server that reads the queue's metrics from its web page every second.
type prometheusServer struct {
	*testrig.Harness
	address string
}

func startPrometheus(browser *testrig.Browser, ruleFile string, flags ...string) *prometheusServer {
	browser.Helper()
	p := &prometheusServer{browser.Harness, testrig.FreeLoopbackAddress(browser)}
	dir := browser.TempDir()
	config := fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [%q]\n"+
		"scrape_configs: [{job_name: queuectl, static_configs: [{targets: [%q]}]}]\n", ruleFile, browser.ServerAddress)
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600); err != nil {
		browser.Fatal(err)
	}
	cmd := exec.Command("prometheus", append(flags, "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "tsdb"), "--web.listen-address="+p.address)...)
	if err := cmd.Start(); err != nil {
		browser.Fatal(err)
	}
	browser.Cleanup(func() { cmd.Process.Signal(syscall.SIGTERM); cmd.Wait() })
	return p
}

// getJSON decodes the reply of Prometheus to a GET request.
func (p *prometheusServer) getJSON(path string, target any) error {
	client := http.Client{Timeout: 10 * time.Second}
	got, err := client.Get("http://" + p.address + path)
	if err != nil {
		return err
	}
	defer got.Body.Close()
	return json.NewDecoder(got.Body).Decode(target)
}

// countSeries returns the number of series in the result of a query.
func (p *prometheusServer) countSeries(expr string) (n int, err error) {
	p.Helper()
	var answer struct {
		Error string
		Data  struct{ Result []json.RawMessage }
	}
	err = p.getJSON("/api/v1/query?"+url.Values{"query": {expr}}.Encode(), &answer)
	if err == nil && answer.Error != "" {
		p.Fatalf("%s: %s", expr, answer.Error)
	}
	return len(answer.Data.Result), err
}

// checkAlertRules waits until Prometheus has evaluated every alert rule without an error.
func (p *prometheusServer) checkAlertRules() {
	p.Helper()
	var reply struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string }
			}
		}
	}
	p.WaitUntil("the rules are evaluated", 20*time.Second, func() bool {
		err := p.getJSON("/api/v1/rules", &reply)
		if err != nil || len(reply.Data.Groups) != 1 {
			return false
		}
		rules := reply.Data.Groups[0].Rules
		return len(rules) > 0 && rules[len(rules)-1].Health != "unknown"
	})
	for _, r := range reply.Data.Groups[0].Rules {
		if r.Health != "ok" {
			p.Errorf("the rule %s: %s", r.Name, r.LastError)
		}
	}
}
