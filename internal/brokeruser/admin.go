package brokeruser

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/internal/brokerpool"
	"redrive.dev/redrive/internal/credentials"
)

// Admins are the logins of RabbitMQ's administrators that --broker-admin names, one for each broker.
type Admins struct {
	// Live reads from the API server itself.
	Live    client.Reader
	Brokers *brokerpool.Pool
	Secrets []types.NamespacedName
}

// ClientOf names a Transport's client with an administrator's login in the pool, beside that with the Transport's own.
func ClientOf(transport types.NamespacedName) types.NamespacedName {
	return types.NamespacedName{Namespace: transport.Namespace, Name: transport.Name + "/admin"}
}

// Port returns the port with the administrator's login for the broker and vhost of a Transport's own login; nil where none is named. A broker is the same
// where the whole URL of its management API is: behind another path of one host may be somebody else's server, which would vouch for a
// vhost that its team has no right in.
func (a *Admins) Port(ctx context.Context, transport types.NamespacedName, own credentials.Credentials, vhost *string) (*brokerpool.View, error) {
	home, err := own.Management()
	if err != nil {
		return nil, nil //nolint:nilerr,nilnil // The Transport's own port tells of it.
	}
	for _, name := range a.Secrets {
		login, err := a.login(ctx, name)
		if err != nil {
			return nil, err
		}
		if end, err := login.Management(); err != nil || end.URL != home.URL {
			continue
		}
		port, err := a.Brokers.Port(ClientOf(transport), login, own.VHostOr(vhost))
		if err != nil {
			return nil, fmt.Errorf("--broker-admin names Secret %s: %w", name, err)
		}
		return port.View(transport.String(), 0), nil
	}
	return nil, nil //nolint:nilnil // there is none
}

func (a *Admins) login(ctx context.Context, name types.NamespacedName) (credentials.Credentials, error) {
	secret := &corev1.Secret{}
	if err := a.Live.Get(ctx, name, secret); apierrors.IsNotFound(err) {
		return credentials.Credentials{}, fmt.Errorf("there is no Secret %s, which --broker-admin of the operator names", name)
	} else if err != nil {
		return credentials.Credentials{}, fmt.Errorf("read Secret %s of --broker-admin: %w", name, err)
	}
	login, err := credentials.FromSecret(secret.Data)
	if err != nil {
		return credentials.Credentials{}, fmt.Errorf("--broker-admin names Secret %s: %w", name, err)
	}
	return login, nil
}
