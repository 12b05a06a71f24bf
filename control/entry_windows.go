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
		return text + ": only its owner and administrators (in an elevated prompt) may use it; to admit other users, change [access] in the settings file of the service"
	case !group:
		return text + ": ask an administrator to admit you in [access] of the settings file of the service, or use an elevated prompt"
	}
	return text + fmt.Sprintf(`: only the group %s may use it; ask an administrator to add you with: net localgroup %[1]s "%s" /add, then log off and on again (or to admit you in [access] of the settings file of the service)`, ServiceAccount, you)
}
