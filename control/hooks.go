package control

// HookName is the name of a webhook, or of a hook in the settings such as on_dead.
type HookName struct {
	Name string `json:"name"`
}
