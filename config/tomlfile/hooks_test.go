package tomlfile_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/config/tomlfile"
	"github.com/queuectl/queuectl/queue"
)

// The tables of hooks and webhooks in a settings file have the same meaning as the text form of these settings.
func TestParseAcceptsHookTables(t *testing.T) {
	file, err := tomlfile.Parse("f", []byte(`hooks_user = "mail"
[hooks]
on_dead = "mail -s dead ops"
[webhooks.ops]
url = "https://example.org/x?y=1"
secret_file = "/etc/queuectl/ops"
events = ["dead", "failed"]
queues = ["bulk"]
[webhooks.all]
url = "http://127.0.0.1:9/"
secret_file = "/s"
`))
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Merge(file)
	if err != nil || c.HooksUser != "mail" || c.Hooks != (queue.HookCommands{OnDead: "mail -s dead ops"}) {
		t.Fatalf("got %q, %+v, %v", c.HooksUser, c.Hooks, err)
	}
	want := map[string]config.Webhook{
		"ops": {URL: "https://example.org/x?y=1", SecretFile: "/etc/queuectl/ops", Events: queue.HookDead | queue.HookFailed,
			OnlyQueues: []string{"bulk"}},
		"all": {URL: "http://127.0.0.1:9/", SecretFile: "/s", Events: queue.HookEnded},
	}
	if got := c.WebhooksByName(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	ops, all := want["ops"], want["all"]
	if !ops.WantsEvent(queue.HookDead, "bulk") || ops.WantsEvent(queue.HookDead, "default") ||
		ops.WantsEvent(queue.HookEnded, "bulk") ||
		!all.WantsEvent(queue.HookEnded, "any") {
		t.Error("a webhook wants other moments than it names")
	}
	again, err := config.Merge(config.Layer{ValuesBySetting: map[string]string{"webhooks": c.Webhooks}})
	if err != nil || !reflect.DeepEqual(again.WebhooksByName(), want) {
		t.Errorf("as text: got %v", err)
	}
	none, err := config.Merge()
	if err != nil || none.HooksUser != "" || len(none.WebhooksByName()) != 0 {
		t.Errorf("by default: got %q, %v", none.HooksUser, err)
	}
}

func TestParseRejectsInvalidWebhooks(t *testing.T) {
	for text, want := range map[string]string{
		`x`: "; write JSON like",
		`{"a b": {"url": "https://x", "secret_file": "/s"}}`:                   "is not a valid webhook name",
		`{"a": {"secret_file": "/s"}}`:                                         "a: url is missing",
		`{"a": {"url": "ftp://x", "secret_file": "/s"}}`:                       "a: url must be like",
		`{"a": {"url": "https://x"}}`:                                          "a: secret_file must be the absolute path",
		`{"a": {"url": "https://x", "secret_file": "s"}}`:                      "a: secret_file must be the absolute path",
		`{"a": {"url": "https://x", "secret_file": "/s", "events": ["deed"]}}`: `did you mean "dead"?`,
		`{"a": {"url": "https://x", "secret_file": "/s", "events": []}}`:       "a: events must not be empty",
		`{"a": {"url": "https://x", "secret_file": "/s", "queues": ["/"]}}`:    "a: queues must be a list",
		`{"a": {"url": "https://x", "secret_file": "/s", "colour": "red"}}`:    "a: colour is not a webhook field",
	} {
		k, _, err := config.FindSetting("webhooks", text)
		if err != nil {
			t.Fatal(err)
		}
		if err := k.CheckValue(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}
