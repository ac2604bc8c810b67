package testbroker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"redrive.dev/redrive/internal/credentials"
)

// At is a broker that runs already. Where the management URL is missing, or has no login, it follows from the AMQP URL.
func At(login credentials.Credentials) (*Broker, error) {
	end, err := login.Management()
	if err != nil {
		return nil, err
	}
	management, err := url.Parse(end.URL)
	if err != nil {
		return nil, fmt.Errorf("management API: %w", err)
	}
	management.User = url.UserPassword(end.Username, end.Password())
	return &Broker{AMQPURL: login.AMQPURL("/"), ManagementURL: management.String()}, nil
}

// AddVhost makes a vhost in which the users that the broker's URLs name may do everything.
func (b *Broker) AddVhost(ctx context.Context, name string) error {
	if err := b.write(ctx, http.MethodPut, vhostPath(name), nil); err != nil {
		return err
	}
	users := map[string]bool{}
	for _, address := range []string{b.AMQPURL, b.ManagementURL} {
		parsed, err := url.Parse(address)
		if err != nil {
			return errors.New("a URL of the broker is not a URL") // the cause would show the password
		}
		users[parsed.User.Username()] = true
	}
	delete(users, "") // a URL without a login
	for user := range users {
		if err := b.write(ctx, http.MethodPut, permissionsPath(name, user), map[string]string{"configure": ".*", "write": ".*", "read": ".*"}); err != nil {
			return err
		}
	}
	return nil
}

// RemoveVhost deletes a vhost with all that is in it.
func (b *Broker) RemoveVhost(ctx context.Context, name string) error {
	return b.manage(ctx, http.MethodDelete, vhostPath(name), nil)
}

func vhostPath(name string) string { return "/api/vhosts/" + url.PathEscape(name) }

func permissionsPath(vhost, user string) string {
	return "/api/permissions/" + url.PathEscape(vhost) + "/" + url.PathEscape(user)
}

// write makes a request with a body of JSON to the management API: an empty object where there is none.
func (b *Broker) write(ctx context.Context, method, path string, body any) error {
	if body == nil {
		body = struct{}{}
	}
	content, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	return b.manage(ctx, method, path, strings.NewReader(string(content)))
}
