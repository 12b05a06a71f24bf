package config

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/queue"
)

// Webhook is an HTTP endpoint that is notified of job events.
type Webhook struct {
	URL        string
	Events     queue.HookEvents
	OnlyQueues []string // only jobs in these queues cause events; empty means all queues
	SecretFile string   // file with the secret that signs the requests
}

// WantsEvent reports whether the webhook receives an event of a job in a queue.
func (w *Webhook) WantsEvent(event queue.HookEvents, queueName string) bool {
	return w.Events&event != 0 && (len(w.OnlyQueues) == 0 || slices.Contains(w.OnlyQueues, queueName))
}

// These constants bound the webhooks in the settings file: their number, and the length of a URL in bytes.
const (
	maxWebhooks        = 64
	maxWebhookURLBytes = 2048
)

// hookSetting returns the setting for a hook, a command that runs after events of any job.
func hookSetting(name string, target *string) Setting {
	return visibleOnlyToAdmins(parsedOrNoneSetting(name, target, func(text string) (string, error) {
		if strings.TrimSpace(text) == "" || len(text) > queue.MaxHookCommandBytes || strings.ContainsRune(text, 0) {
			return "", fmt.Errorf("must be a command of 1 to %d bytes; use none for no hook", queue.MaxHookCommandBytes)
		}
		return text, nil
	}))
}

func checkWebhooks(text string) (string, error) {
	_, err := parseWebhooks(text)
	return text, err
}

// WebhooksByName parses the setting webhooks and returns the webhooks by name.
func (s *Settings) WebhooksByName() map[string]Webhook {
	return panicOnParseError(parseWebhooks(s.Webhooks))
}

// SetWebhooks sets the setting "webhooks" from the table of the same name in a settings file. Each webhook in
// the table has url and secret_file, and optionally events and queues.
func (l *Layer) SetWebhooks(table map[string]any) error {
	text := []byte(noneWord)
	if len(table) > 0 {
		var err error
		if text, err = json.Marshal(table); err != nil {
			return queue.InvalidFieldError("webhooks", "%s", err)
		}
	}
	return l.Set("webhooks", string(text))
}

func parseWebhooks(text string) (map[string]Webhook, error) {
	of := map[string]Webhook{}
	if text == noneWord {
		return of, nil
	}
	if err := queue.CheckJSON([]byte(text)); err != nil {
		return nil, fmt.Errorf(`%w; write JSON like {"ops": {"url": "https://…", "secret_file": "/etc/…"}}, or none`, err)
	}
	err := queue.EachMember([]byte(text), func(name string, value json.RawMessage) error {
		w, err := parseWebhook(value)
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", queue.ClipForMessage(name), err)
		case !queue.ValidID(name):
			return fmt.Errorf("%q is not a valid webhook name; use letters, digits and . _ @ / -, starting with "+
				"a letter or a digit", queue.ClipForMessage(name))
		case len(of) == maxWebhooks:
			return fmt.Errorf("too many webhooks; the maximum is %d", maxWebhooks)
		}
		of[name] = w
		return nil
	})
	return of, err
}

func parseWebhook(text json.RawMessage) (w Webhook, err error) {
	err = queue.EachMember(text, func(name string, value json.RawMessage) (err error) {
		var eventNames []string
		switch name {
		case "url":
			w.URL, err = queue.DecodeJSONString(value)
		case "secret_file":
			w.SecretFile, err = queue.DecodeJSONString(value)
		case "queues":
			if json.Unmarshal(value, &w.OnlyQueues) != nil ||
				slices.ContainsFunc(w.OnlyQueues, func(q string) bool { return !queue.ValidQueueName(q) }) {
				err = fmt.Errorf("must be a list of queue names, like [\"mail\"]")
			}
		case "events":
			if json.Unmarshal(value, &eventNames) != nil {
				err = fmt.Errorf("must be a list of events, like [\"dead\"]")
			} else {
				w.Events, err = parseHookEvents(eventNames)
			}
		default:
			err = fmt.Errorf("is not a webhook field; use url, secret_file, events or queues")
		}
		if err != nil {
			err = fmt.Errorf("%s %w", queue.ClipForMessage(name), err)
		}
		return err
	})
	to, wrong := url.Parse(w.URL)
	switch {
	case err != nil:
	case w.URL == "":
		err = fmt.Errorf("url is missing; add the address to send requests to")
	case wrong != nil || to.Host == "" || to.Scheme != "https" && to.Scheme != "http" || len(w.URL) > maxWebhookURLBytes ||
		strings.ContainsFunc(w.URL, func(r rune) bool { return r <= ' ' || r > '~' }):
		err = fmt.Errorf("url must be like https://host/path, with at most %d bytes", maxWebhookURLBytes)
	case !strings.HasPrefix(w.SecretFile, "/") && !(len(w.SecretFile) > 2 && w.SecretFile[1] == ':') ||
		strings.ContainsRune(w.SecretFile, 0):
		err = fmt.Errorf("secret_file must be the absolute path of the file with the secret that signs the requests")
	case w.Events == 0:
		w.Events = queue.HookEnded
	}
	return w, err
}

// parseHookEvents converts a list of event names to a set.
func parseHookEvents(eventNames []string) (events queue.HookEvents, err error) {
	names := map[string]queue.HookEvents{}
	for _, m := range queue.AllHookEvents {
		names[m.String()] = m
	}
	for _, name := range eventNames {
		m, known := names[name]
		if !known {
			words := slices.Sorted(maps.Keys(names))
			return 0, fmt.Errorf("contains the unknown event %q%s", queue.ClipForMessage(name),
				cmp.Or(queue.DidYouMean(name, words), "; use "+strings.Join(words, ", ")))
		}
		events |= m
	}
	if events == 0 {
		return 0, fmt.Errorf("must not be empty; remove this field to receive the event \"ended\"")
	}
	return events, nil
}
