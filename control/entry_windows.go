package control

import (
	"fmt"
	"strings"

	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/queue"
)

// whereLog says where the log of the system's service is.
const whereLog = `%ProgramData%\queuectl\service.log, or Event Viewer, Windows Logs, Application`

// notLetIn is why this user may not use a pipe, and how that can be changed. Whom it lets
// in those it keeps out cannot ask.
func notLetIn(path string) error {
	var known accounts.Directory
	you := known.UserName(accounts.Self())
	_, group := known.GroupID(ServiceAccount)
	return queue.Errorf(queue.CodeDenied, "%s", closedTo(path, you, group))
}

// closedTo says why somebody may not use a pipe. There may be a group for that.
func closedTo(path, you string, group bool) string {
	text := fmt.Sprintf("%s may not use the pipe %s", you, path)
	name, _ := cutPipes(path)
	switch {
	case !strings.EqualFold(name, ServiceAccount): // it is a user's own
		return text + ": it is for its owner and administrators alone (in a prompt that was run as administrator); a service lets others in by [access] of its settings file"
	case !group:
		return text + ": an administrator lets you in by [access] of its settings file, or uses it in a prompt that was run as administrator"
	}
	return text + fmt.Sprintf(`: it is for the group %s; an administrator lets you join it with: net localgroup %[1]s "%s" /add, then log off and on again (or lets you in by [access] of its settings file)`, ServiceAccount, you)
}
