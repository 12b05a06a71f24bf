package control

import "github.com/queuectl/queuectl/queue"

// HookName names a hook of the settings, as on_dead, or a webhook.
type HookName struct {
	Name string `json:"name"`
}

func (p *HookName) check() error {
	if p.Name == "" {
		return queue.Invalid("name", "is missing; it names a webhook, or a hook of the settings like on_dead")
	}
	return nil
}
