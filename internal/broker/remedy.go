package broker

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// remedy is the command that gives the user of a request what it lacked, by the broker's reason; empty where no right is lacking that the
// documentation asks for. What may not be deleted may be somebody else's, so that rights on all names of the vhost are none.
func remedy(request *http.Request, reason string) string {
	if request == nil {
		return ""
	}
	user, _, ok := request.BasicAuth()
	lower := strings.ToLower(reason)
	switch {
	case !ok:
		return ""
	case strings.Contains(lower, "not management user"), strings.Contains(lower, "not policymaker"), strings.Contains(lower, "not policy maker"):
		return "rabbitmqctl set_user_tags " + shellWord(user) + " policymaker"
	case request.Method == http.MethodDelete && !strings.Contains(lower, "virtual host"):
		return ""
	case strings.Contains(lower, "virtual host"), strings.Contains(lower, "access_refused"), strings.Contains(lower, "access refused"):
		return "rabbitmqctl set_permissions -p " + shellWord(vhostOf(request.URL)) + " " + shellWord(user) + " '.*' '.*' '.*'"
	default:
		return ""
	}
}

// culprit says how to find what makes a list too large to be read: most likely arguments of somebody else, for RabbitMQ takes any. It is empty for what is
// no such list.
func culprit(request *http.Request) string {
	if request == nil {
		return ""
	}
	const advice = "; if somebody has given one large arguments: find it with rabbitmqctl %s -p %s %s arguments, and %s"
	vhost := shellWord(vhostOf(request.URL))
	switch path := request.URL.Path; {
	case strings.Contains(path, "/bindings"):
		return fmt.Sprintf(advice, "list_bindings", vhost, "source_name destination_name", "unbind it by AMQP")
	case strings.Contains(path, "/api/queues/"):
		return fmt.Sprintf(advice, "list_queues", vhost, "name", "have it deleted (rabbitmqctl delete_queue)")
	case strings.Contains(path, "/api/exchanges/"):
		return fmt.Sprintf(advice, "list_exchanges", vhost, "name", "have it deleted")
	default:
		return ""
	}
}

// vhostOf is the vhost in the path of a request: …/api/queues/VHOST/….
func vhostOf(target *url.URL) string {
	parts := strings.Split(target.EscapedPath(), "/")
	at := slices.Index(parts, "api")
	if at < 0 || at+2 >= len(parts) {
		return "VHOST"
	}
	if name, err := url.PathUnescape(parts[at+2]); err == nil {
		return name
	}
	return "VHOST"
}

var plainWord = regexp.MustCompile(`^[\w./:@-]+$`)

// shellWord is a text as one word of a shell.
func shellWord(text string) string {
	if plainWord.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
