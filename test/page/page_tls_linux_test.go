package page

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/internal/testrig"
)

// pageHostName is the page's host name, for which the test certificate is issued.
const pageHostName = "queue.test"

// createCertificate creates a certificate for pageHostName, and an HTTP client that trusts only this certificate and
// resolves pageHostName to address.
func createCertificate(q *testrig.Harness, address string) (certPath, keyPath string, client *http.Client) {
	q.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		q.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: pageHostName},
		DNSNames: []string{pageHostName}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		q.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		q.Fatal(err)
	}
	trusted := x509.NewCertPool()
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	trusted.AppendCertsFromPEM(text)
	certPath, keyPath = q.WriteFile("page.crt", string(text)),
		q.WriteFile("page.key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})))
	client = &http.Client{
		Timeout:       10 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted},
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "tcp", address)
			}},
	}
	q.Cleanup(client.CloseIdleConnections)
	return certPath, keyPath, client
}

// openSignInLink opens a sign-in link with a client. It checks that the session's cookie is restricted to this host
// and to TLS, and returns the cookie.
func openSignInLink(q *testrig.Harness, client *http.Client, signInLink string) *http.Cookie {
	q.Helper()
	u, err := url.Parse(signInLink)
	if err != nil || u.Scheme != "https" || u.Hostname() != pageHostName {
		q.Fatalf("the link is %q, %v", signInLink, err)
	}
	u.RawQuery, u.Path = "", "/open"
	got, err := client.PostForm(u.String(), url.Values{"link": {signInLink[strings.Index(signInLink, "link=")+5:]}})
	if err != nil {
		q.Fatal(err)
	}
	got.Body.Close()
	c, err := http.ParseSetCookie(got.Header.Get("Set-Cookie"))
	if err != nil || c.Name != "__Host-queuectl" || !c.Secure || !c.HttpOnly || c.Path != "/" || c.Domain != "" {
		q.Fatalf("%s sets the cookie %+v, %v", got.Status, c, err)
	}
	return c
}

// If the service has a certificate, it serves the page only over TLS and only under its host names.
func TestPageIsServedOnlyOverTLS(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	address := testrig.FreeLoopbackAddress(t)
	cert, key, client := createCertificate(q, address)
	for name, value := range map[string]string{"web.hosts": pageHostName, "web.tls_cert": cert, "web.tls_key": key} {
		q.MustRunCLI("config", "set", name, value)
	}
	q.MustRunCLI("web", "start", "--listen", address)
	c := openSignInLink(q, client, q.MustRunCLI("web", "open"))
	for _, with := range []struct {
		scheme string
		cookie *http.Cookie
		code   int
	}{{"https", c, http.StatusOK}, {"https", nil, http.StatusUnauthorized}, {"http", c, http.StatusBadRequest}} {
		_, port, _ := net.SplitHostPort(address)
		r, err := http.NewRequestWithContext(t.Context(), "GET", with.scheme+"://"+net.JoinHostPort(pageHostName, port)+
			"/api/status", nil)
		if err != nil {
			t.Fatal(err)
		}
		if with.cookie != nil {
			r.AddCookie(with.cookie)
		}
		got, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		got.Body.Close()
		if got.StatusCode != with.code {
			t.Errorf("request %+v: got status %s", with, got.Status)
		}
		// RFC 6797 permits this header only over TLS.
		if hsts := got.Header.Get("Strict-Transport-Security"); (hsts != "") != (with.scheme == "https") {
			t.Errorf("response to %+v: got Strict-Transport-Security %q", with, hsts)
		}
	}
	q.WriteFile("page.key", "none")
	if got := q.RunCLI("web", "start", "--listen", "127.0.0.1:0"); got.ExitCode != 2 ||
		!strings.Contains(got.Stderr, "web.tls_cert") {
		t.Errorf("with a wrong key: %+v", got)
	}
	openSignInLink(q, client, q.MustRunCLI("web", "open")) // the page still works with the old certificate
	_, _, renewed := createCertificate(q, address)
	q.MustRunCLI("reload")
	openSignInLink(q, renewed, q.MustRunCLI("web", "open"))
}

// `queuectl web start` refuses the path of a socket on which another process listens, but replaces a socket file
// without a listener. If the socket file of the page is removed, the service creates it again.
func TestPageListensOnUnixSocket(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	q.MustRunCLI("config", "set", "web.hosts", pageHostName)
	q.MustRunCLI("config", "set", "web.tls", "proxy")
	others, err := net.Listen("unix", q.Path("others"))
	if err != nil {
		t.Fatal(err)
	}
	defer others.Close()
	if got := q.RunCLI("web", "start", "--listen", "unix:"+q.Path("others")); got.ExitCode != 5 ||
		!strings.Contains(got.Stderr, "already listens there") {
		t.Errorf("web start on the socket of another process: %+v", got)
	}
	answers := func() bool {
		c, err := net.Dial("unix", q.Path("page"))
		if err == nil {
			c.Close()
		}
		return err == nil
	}
	q.MustRunCLI("web", "start", "--listen", "unix:"+q.Path("page"))
	q.MustRunCLI("web", "start", "--listen", "unix:"+q.StateDir+"/../"+filepath.Base(q.StateDir)+"/page")
	info, err := os.Lstat(q.Path("page"))
	if err != nil || info.Mode().Perm() != 0o660 || !answers() {
		t.Errorf("the socket is %v, %v", info, err)
	}
	os.Remove(q.Path("page"))
	q.WaitUntil("the socket exists again", 20*time.Second, answers)
	q.KillService()
	q.StartService("--workers", "1")
	q.MustRunCLI("web", "start", "--listen", "unix:"+q.Path("page"))
	if !answers() {
		t.Error("after a kill and a restart the socket does not answer")
	}
	conn, err := net.Dial("unix", q.Path("page")) // this unfinished request must not delay `queuectl web stop`
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: ")
	q.MustRunCLI("web", "stop")
	if _, err := os.Lstat(q.Path("page")); err == nil {
		t.Error("the socket still exists after web stop")
	}
}

// If systemd passes sockets to the service, the page listens on all of them from the start of the service. No
// setting or command can make the page stop listening on them.
func TestPageListensOnSystemdSockets(t *testing.T) {
	q := testrig.NewHarness(t, "")
	var addresses []string
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		f, err := l.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		addresses, q.WebPageSockets = append(addresses, l.Addr().String()), append(q.WebPageSockets, f)
		l.Close()
		t.Cleanup(func() { f.Close() })
	}
	udp, err := net.ListenPacket("udp", "127.0.0.1:0") // the page cannot use this socket, so the service ignores it
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	f, err := udp.(*net.UDPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	q.WebPageSockets = append(q.WebPageSockets, f)
	q.StartService("--workers", "1")
	answers := func(what string) {
		t.Helper()
		for _, address := range addresses {
			got, err := http.Get("http://" + address + "/")
			if err != nil {
				t.Fatal(what, err)
			}
			got.Body.Close()
			if got.StatusCode != http.StatusUnauthorized {
				t.Errorf("%s: a request to %s got status %s", what, address, got.Status)
			}
		}
	}
	answers("from the start")
	if address := q.MustRunCLI("web", "start"); address != addresses[0] {
		t.Errorf("web start prints the address %q, want the first of %v", address, addresses)
	}
	for _, args := range [][]string{{"web", "stop"}, {"web", "start", "--listen", "127.0.0.1:0"}} {
		if got := q.RunCLI(args...); got.ExitCode != 5 ||
			!strings.Contains(got.Stderr, "systemctl disable --now queuectl-web.socket") {
			t.Errorf("%v: %+v", args, got)
		}
	}
	q.MustRunCLI("config", "set", "web.listen", "127.0.0.1:1")
	answers("with another setting")
	cert, key, client := createCertificate(q, addresses[0])
	for name, value := range map[string]string{"web.hosts": pageHostName, "web.tls_cert": cert, "web.tls_key": key} {
		q.MustRunCLI("config", "set", name, value)
	}
	openSignInLink(q, client, q.MustRunCLI("web", "open"))
	for _, name := range []string{"web.tls_cert", "web.tls_key"} {
		q.MustRunCLI("config", "unset", name)
	}
	answers("without TLS again")
	q.KillService()
	q.StartService("--workers", "1")
	answers("after a kill")
}

// nginxConfigTemplate is the nginx configuration of docs/dashboard.md, with placeholders for the paths of a test.
const nginxConfigTemplate = `daemon off; master_process off; pid %[1]s/nginx.pid; error_log %[1]s/nginx.log;
events {}
http {
	access_log off;
	client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
	server {
		listen %[2]s ssl;
		server_name queue.test;
		ssl_certificate %[3]s;
		ssl_certificate_key %[4]s;
		location / {
			proxy_pass http://unix:%[1]s/page.sock;
			proxy_http_version 1.1;
			proxy_set_header Host $host;
			proxy_set_header X-Forwarded-For $remote_addr;
			proxy_set_header Connection "";
			proxy_buffering off;
			proxy_read_timeout 1h;
		}
	}
}
`

// The page also works behind nginx, which has the certificate. Links contain nginx's host name, cookies are
// restricted to TLS, events arrive as they happen, and a session is required.
func TestPageWorksBehindNginx(t *testing.T) {
	nginx := skip.UnlessProgram(t, "nginx",
		"needs nginx; .ci/run installs it, and TestPageIsServedOnlyOverTLS has the page's own TLS")
	q := testrig.StartQueue(t, "--workers", "1")
	address := testrig.FreeLoopbackAddress(t)
	cert, key, client := createCertificate(q, address)
	for name, value := range map[string]string{"web.hosts": pageHostName, "web.tls": "proxy", "web.anonymous": "read"} {
		q.MustRunCLI("config", "set", name, value)
	}
	if got := q.MustRunCLI("web", "start", "--listen", "unix:"+q.Path("page.sock")); got != "unix:"+q.Path("page.sock") {
		t.Errorf("the page is at %q", got)
	}
	cmd := exec.Command(nginx, "-c", q.WriteFile("nginx.conf",
		fmt.Sprintf(nginxConfigTemplate, q.StateDir, address, cert, key)), "-p", q.StateDir)
	if os.Getuid() == 0 { // run nginx as root, because its usual account may have no access to the directory
		cmd.Args = append(cmd.Args, "-g", "user root;")
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	get := func(path string, c *http.Cookie) (*http.Response, error) {
		r, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+pageHostName+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if c != nil {
			r.AddCookie(c)
		}
		return client.Do(r)
	}
	q.WaitUntil("nginx answers", 20*time.Second, func() bool {
		got, err := get("/api/status", nil)
		if err != nil {
			return false
		}
		got.Body.Close()
		if got.StatusCode != http.StatusUnauthorized {
			t.Fatalf("a request without a session gets %s", got.Status)
		}
		return true
	})
	c := openSignInLink(q, client, q.MustRunCLI("web", "open"))
	got, err := get("/", c)
	if err != nil || got.StatusCode != http.StatusOK ||
		!strings.Contains(got.Header.Get("Content-Security-Policy"), "default-src 'none'") {
		t.Fatalf("the request gets %+v, %v", got, err)
	}
	got.Body.Close()
	stream, err := get("/api/events?since=0", c)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	q.MustRunCLI("enqueue", "--id", "a", "true")
	for lines := bufio.NewScanner(stream.Body); lines.Scan(); {
		if strings.Contains(lines.Text(), `"event":"ended"`) {
			return
		}
	}
	t.Error("no event comes through nginx")
}
