package amqp

import (
	"fmt"

	"redrive.dev/redrive/internal/credentials"
)

// TargetOf is the target that credentials name. vhost is that of the spec; empty where the credentials' holds.
func TargetOf(c credentials.Credentials, vhost string) (Target, error) {
	tls, err := c.TLS()
	if err != nil {
		return Target{}, fmt.Errorf("TLS to the broker: %w", err)
	}
	return Target{
		Address: c.Address(), Username: c.Username, Password: c.Password, VHost: c.VHostOr(&vhost), TLS: tls,
	}, nil
}
