package controllers

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

// findAdmin looks for the login by which the users of a Transport's workers are kept: that of --broker-admin for its broker. Where there is
// none it is the Transport's own, which then has to be an administrator's. A broker is the same where the whole URL of its management API is:
// behind another path of one host may be somebody else's server, which would vouch for a vhost that its team has no right in.
func (r *TransportReconciler) findAdmin(ctx context.Context, run *transportRun) (*brokerpool.View, error) {
	home, err := run.source.login.Management()
	if err != nil {
		return run.port, nil //nolint:nilerr // There would be no port.
	}
	for _, name := range r.Options.BrokerAdmins {
		login, err := r.adminLogin(ctx, name)
		if err != nil {
			return nil, err
		}
		if end, err := login.Management(); err != nil || end.URL != home.URL {
			continue
		}
		port, err := r.brokers.Port(adminOf(client.ObjectKeyFromObject(run.transport)), login, run.source.login.VHostOr(run.transport.Spec.Broker.VHost))
		if err != nil {
			return nil, fmt.Errorf("--broker-admin names Secret %s: %w", name, err)
		}
		return port.View(client.ObjectKeyFromObject(run.transport).String(), 0), nil
	}
	return run.port, nil
}

// adminOf names the client with the administrator's login, beside that with the Transport's own.
func adminOf(transport types.NamespacedName) types.NamespacedName {
	return types.NamespacedName{Namespace: transport.Namespace, Name: transport.Name + "/admin"}
}

// adminLogin reads one of the Secrets of --broker-admin.
func (r *TransportReconciler) adminLogin(ctx context.Context, name client.ObjectKey) (credentials.Credentials, error) {
	secret := &corev1.Secret{}
	if err := r.Live.Get(ctx, name, secret); apierrors.IsNotFound(err) {
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

// users is the port by which the users of the workers are kept.
func (r *TransportReconciler) users(ctx context.Context, run *transportRun) (*brokerpool.View, error) {
	var err error
	if run.admin == nil {
		run.admin, err = r.findAdmin(ctx, run)
	}
	return run.admin, err
}

// warnOfAdmin tells that a team's namespace holds a login that may do everything on the broker.
func (run *transportRun) warnOfAdmin() {
	if run.admin != run.port {
		return
	}
	run.warnings = append(run.warnings, fmt.Sprintf(
		"RabbitMQ's administrator is in the %s, where anyone who may run pods in this namespace can read it: name, with --broker-admin of the operator, a Secret "+
			"of the operator's own namespace with that login, and then take the tag administrator from the login here", run.source))
}
