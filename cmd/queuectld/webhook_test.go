package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/queuectl/queuectl/service/hooks"
)

// postWebhook posts exactly its input, with a valid signature. The exit code says whether the receiver accepted
// the webhook.
func TestPostWebhookSendsSignedPayload(t *testing.T) {
	const secret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
	signer, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	status, got := 0, 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got++
		body, err := io.ReadAll(r.Body)
		if err != nil || string(body) != `{"type":"job.dead"}` {
			t.Errorf("the receiver got the body %q, error %v", body, err)
		}
		if err := signer.Verify(body, r.Header); err != nil {
			t.Error(err)
		}
		if id := r.Header.Get("webhook-id"); id != "7.8.dead" || r.Header.Get("content-type") != "application/json" {
			t.Errorf("the receiver got the id %q and the headers %v", id, r.Header)
		}
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(status)
		io.WriteString(w, strings.Repeat("x", 2*maxPrintedResponseBytes))
	}))
	defer server.Close()
	env := map[string]string{hooks.WebhookURLEnvName: server.URL + "/a?token=s3cret", hooks.WebhookSecretFileEnvName: file,
		hooks.WebhookIDEnvName: "7.8.dead"}
	post := func() (code int, out, errs string) {
		var o, e bytes.Buffer
		code = postWebhook(t.Context(), strings.NewReader(`{"type":"job.dead"}`), &o, &e,
			func(name string) string { return env[name] })
		return code, o.String(), e.String()
	}
	for _, c := range []struct {
		status, code int
		says         string
	}{{200, 0, ""}, {500, 1, ""}, {404, 1, ""}, {302, 1, "do not follow redirects"},
		{410, hooks.WebhookReceiverGoneExitCode, "no longer accepts this webhook"}} {
		status, got = c.status, 0
		code, out, errs := post()
		if code != c.code || got != 1 || !strings.Contains(out, http.StatusText(c.status)) ||
			len(out) > 2*maxPrintedResponseBytes ||
			!strings.Contains(errs, c.says) {
			t.Errorf("response %d: exit code %d after %d requests, output %.80q, errors %q", c.status, code, got, out, errs)
		}
	}
	server.Close()
	if code, _, errs := post(); code != 1 || strings.Contains(errs, "s3cret") || !strings.Contains(errs, "refused") {
		t.Errorf("without a server: exit code %d, errors %q", code, errs)
	}
	for text, want := range map[string]string{"": "is empty", "whsec_!": "has no valid secret"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, _, errs := post(); code != 1 || !strings.Contains(errs, want) {
			t.Errorf("secret %q: exit code %d, errors %q", text, code, errs)
		}
	}
	env[hooks.WebhookSecretFileEnvName] = file + ".none"
	if code, _, errs := post(); code != 1 || !strings.Contains(errs, "secret.none") {
		t.Errorf("without a secret file: exit code %d, errors %q", code, errs)
	}
}
