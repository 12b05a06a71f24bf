package control

// HookName names a hook of the settings, as on_dead, or a webhook.
type HookName struct {
	Name string `json:"name"`
}
