package controllers_test

import (
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/brokeruser"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/topology"
	"redrive.dev/redrive/internal/workload"
)

// scoped is a Transport whose workers get a user of their own.
func (w *world) scoped() *v1alpha1.Transport {
	t := w.transport()
	t.Spec.Broker.ScopedUser = new(true)
	return t
}

// administer gives the operator's login the tag that making users needs.
func (w *world) administer() {
	w.Helper()
	w.password = testbroker.Shared(w).ChangePassword(w, w.user, "administrator")
	thePasswords.add(w.namespace, w.user, w.password)
	edit(w, w.secret(), func(s *corev1.Secret) { s.StringData = map[string]string{"password": w.password} })
}

// allowSecrets gives the operator the right that config/scoped-users has, in the test's namespace.
func (w *world) allowSecrets() {
	w.Helper()
	file, err := os.ReadFile("../config/scoped-users/role/role.yaml")
	must(w.T, err)
	deployed := &rbacv1.ClusterRole{}
	must(w.T, yaml.UnmarshalStrict(file, deployed))
	meta := metav1.ObjectMeta{Namespace: w.namespace, Name: deployed.Name}
	w.create(&rbacv1.Role{ObjectMeta: meta, Rules: deployed.Rules}, &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: deployed.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: managerUser}},
	})
}

// scopedReady is a Transport whose workers have their own user.
func (w *world) scopedReady() *v1alpha1.Transport {
	w.Helper()
	w.administer()
	w.allowSecrets()
	t := w.scoped()
	w.create(w.policy("policy", time.Second, 2*time.Second), t)
	w.awaitReady(t)
	w.dropUsersOf(t)
	return t
}

// dropUsersOf deletes what a test may leave on the broker.
func (w *world) dropUsersOf(t *v1alpha1.Transport) {
	names := topology.UserNames(t, owner(w.T, w, t))
	w.Cleanup(func() {
		for _, name := range names {
			testbroker.Shared(w).Forget(name)
		}
	})
}

// userSecret is what the workers log in with; nil where there is none.
func (w *world) userSecret(t *v1alpha1.Transport) *corev1.Secret {
	w.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: workload.UserSecretName(t)}}
	if !w.get(secret) {
		return nil
	}
	if password := string(secret.Data["password"]); password != "" {
		thePasswords.add(w.namespace, string(secret.Data["username"]), password)
	}
	return secret
}

// loggedInAs is the user of the workers' Secret, if the broker knows it with that password.
func (w *world) loggedInAs(t *v1alpha1.Transport) string {
	w.Helper()
	secret := w.userSecret(t)
	if secret == nil {
		return ""
	}
	user, err := w.broker.User(w.Context(), string(secret.Data["username"]))
	if err != nil || !user.HasPassword(string(secret.Data["password"])) {
		return ""
	}
	return user.Name
}

// logIn connects as the workers do.
func (w *world) logIn(t *v1alpha1.Transport) *testtransport.Broker {
	w.Helper()
	secret := w.userSecret(t)
	u, err := url.Parse(testbroker.Shared(w).URL(w.vhost))
	must(w.T, err)
	u.User = url.UserPassword(string(secret.Data["username"]), string(secret.Data["password"]))
	return testtransport.Connect(w, u.String())
}

func (w *world) hasUser(name string) bool {
	w.Helper()
	response, err := testbroker.Client.Get(testbroker.Shared(w).ManagementURL + "/api/users/" + url.PathEscape(name))
	must(w.T, err)
	defer func() { _ = response.Body.Close() }()
	return response.StatusCode == http.StatusOK
}

// rightsOf are all rights of a user, in all vhosts.
func (w *world) rightsOf(name string) []broker.Permission {
	w.Helper()
	rights, err := w.broker.Permissions(w.Context(), name)
	must(w.T, err)
	return rights
}

func (w *world) rights(read string) []broker.Permission {
	return []broker.Permission{{VHost: w.vhost, Configure: "^$", Write: `^(async\.failed|async\.fallback|async\.return)$`, Read: read}}
}

// mounted is the Secret that the pods of the one worker group log in with.
func (w *world) mounted() string {
	w.Helper()
	return w.deployments()[0].Spec.Template.Spec.Volumes[1].Projected.Sources[0].Secret.Name
}

func TestScopedUser_FollowsTheQueuesOfItsWorkers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.scopedReady()
	secret, names := w.userSecret(transport), topology.UserNames(transport, owner(t, w, transport))
	if got := w.loggedInAs(transport); got != names[0] || w.mounted() != secret.Name || secret.Type != brokeruser.SecretType {
		t.Fatalf("the user is %q, and the pods mount %s of type %s", got, w.mounted(), secret.Type)
	}
	if _, is := secret.Data["management_uri"]; is || !metav1.IsControlledBy(secret, transport) || string(secret.Data["vhost"]) != w.vhost {
		t.Errorf("the Secret belongs to %v and has vhost %q", secret.OwnerReferences, secret.Data["vhost"])
	}
	user, err := w.broker.User(t.Context(), names[0])
	must(t, err)
	const both = `^(lost|test)(|\.quarantine)$`
	if got := w.rightsOf(names[0]); len(user.Tags) > 0 || !slices.Equal(got, w.rights(both)) {
		t.Errorf("tags %q, rights %+v", user.Tags, got)
	}

	t.Log("nothing is written where nothing differs")
	w.settle()
	server, written := w.operator.writes.of(w.namespace), w.proxy.writes.Load()
	w.awaitLooks(6)
	if now := w.operator.writes.of(w.namespace); len(now) > len(server) || w.proxy.writes.Load() > written {
		t.Errorf("written: %v, %v", now[len(server):], w.proxy.since(int(written)))
	}

	t.Log("a new queue is granted before the workers know it, an old one taken away after")
	edit(w, transport, func(t *v1alpha1.Transport) {
		t.Spec.Queues = append(t.Spec.Queues, v1alpha1.Queue{Name: "a.b+c", BindingKeys: []string{"abc"}})
	})
	w.awaitReady(transport)
	writes, right, published := w.proxy.since(int(written)), -1, -1
	for i, write := range writes {
		if strings.Contains(write, "/api/permissions/") {
			right = i
		}
	}
	for _, configMap := range w.configMaps() {
		if strings.Contains(configMap.Data[workload.ConfigKey], "a.b+c") {
			published = len(writes)
		}
	}
	const three = `^(a\.b\+c|lost|test)(|\.quarantine)$`
	if got := w.rightsOf(names[0]); right < 0 || published < 0 || !slices.Equal(got, w.rights(three)) {
		t.Errorf("rights %+v after %v", got, writes)
	}
	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Queues = t.Spec.Queues[:2] })
	testtransport.Eventually(t, "the right to go with the queue", func() bool {
		w.rollOut()
		return slices.Equal(w.rightsOf(names[0]), w.rights(both)) && !w.hasQueue("a.b+c")
	})

	t.Log("what others give it or take from it is taken back")
	server2 := testbroker.Shared(t)
	server2.Permit(t, names[0], w.vhost, ".*", ".*", ".*")
	other := server2.Vhost(t)
	server2.Permit(t, names[0], other, ".*", ".*", ".*")
	testtransport.Eventually(t, "the rights to be put right", func() bool { return slices.Equal(w.rightsOf(names[0]), w.rights(both)) })
	w.awaitEvent("BrokerUserRepaired", names[0])

	t.Log("turned off")
	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Broker.ScopedUser = nil })
	testtransport.Eventually(t, "the user to go", func() bool { w.rollOut(); return !w.hasUser(names[0]) })
	w.awaitReady(transport)
	testtransport.Eventually(t, "the Secret to go", func() bool {
		w.get(transport)
		return w.userSecret(transport) == nil && len(transport.Status.BrokerUsers) == 0
	})
	if w.mounted() != secretName {
		t.Errorf("the pods mount %s", w.mounted())
	}
}

// What is on its way out is not for workers only because of that: failed messages are nobody's who is to handle messages.
func TestScopedUser_MayNotReadAFailureQueueThatLeaves(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.scopedReady()
	name := w.loggedInAs(transport)
	w.amqp.Publish("async.failed", "", amqp091.Publishing{MessageId: "failed"})
	w.awaitCount("async.failed", 1) // the tests' waits are shorter than the broker takes to count
	edit(w, transport, func(t *v1alpha1.Transport) {
		t.Spec.Failure = &v1alpha1.Failure{Queue: new("dead")}
		t.Spec.Queues = append(t.Spec.Queues, v1alpha1.Queue{Name: "third", BindingKeys: []string{"third"}})
	})
	testtransport.Eventually(t, "the old failure queue to be kept for its message", func() bool {
		w.awaitReady(transport)
		return slices.ContainsFunc(transport.Status.Retiring, func(s v1alpha1.Retirement) bool {
			return s.Queue == "async.failed" && s.Messages != nil && *s.Messages == 1
		})
	})
	if got := w.rightsOf(name); !slices.Equal(got, w.rights(`^(lost|test|third)(|\.quarantine)$`)) {
		t.Errorf("rights %+v", got)
	}
}

func TestScopedUser_ChangesALoginThatIsOldOrTamperedWith(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.scopedReady()
	server, names := testbroker.Shared(t), topology.UserNames(transport, owner(t, w, transport))
	generation := w.deployments()[0].Generation
	// after waits for a login as another user than before, and for that one to be gone.
	after := func(what string, tamper func(current string)) {
		t.Helper()
		current := w.loggedInAs(transport)
		password := string(w.userSecret(transport).Data["password"])
		next := names[0]
		if current == next {
			next = names[1]
		}
		tamper(current)
		testtransport.Eventually(t, what+" to be followed by another login", func() bool { return w.loggedInAs(transport) == next })
		testtransport.Eventually(t, "the former user to go", func() bool { return !w.hasUser(current) })
		if string(w.userSecret(transport).Data["password"]) == password {
			t.Errorf("%s: the password is the same", what)
		}
		w.awaitReady(transport)
	}
	after("30 days", func(string) {
		w.get(transport)
		before := transport.DeepCopy()
		transport.Status.BrokerUsers[0].Since = new(metav1.NewTime(time.Now().Add(-30 * 24 * time.Hour)))
		must(t, w.client.Status().Patch(t.Context(), transport, client.MergeFrom(before)))
	})
	after("another password", func(current string) { server.ChangePassword(t, current, "") })
	after("a deleted user", func(current string) { server.DeleteUser(t, current) })
	after("a deleted Secret", func(string) { must(t, w.client.Delete(t.Context(), w.userSecret(transport))) })
	after("a Secret with another login", func(string) {
		edit(w, w.userSecret(transport), func(s *corev1.Secret) { s.StringData = map[string]string{"username": "guest"} })
	})
	if now := w.deployments()[0].Generation; now != generation {
		t.Errorf("generation %d of the Deployment after %d: pods were restarted", now, generation)
	}
}

// A user that somebody is logged in as is not taken away.
func TestScopedUser_StaysWhileWorkersAreLoggedIn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.scopedReady()
	first := w.loggedInAs(transport)
	worker := w.logIn(transport)
	must(t, w.client.Delete(t.Context(), w.userSecret(transport)))
	testtransport.Eventually(t, "another login", func() bool { return !slices.Contains([]string{"", first}, w.loggedInAs(transport)) })
	w.awaitLooks(6)
	if !w.hasUser(first) {
		t.Error("the former user is gone while somebody is logged in as it")
	}
	_, err := worker.Channel().Consume("test", "", false, false, false, false, nil)
	must(t, err)
	must(t, worker.Close())
	testtransport.Eventually(t, "the former user to go", func() bool { return !w.hasUser(first) })
}

// All pods see the same Secret, also one that never starts: it kept the former password valid, and the present one from being changed, for ever.
func TestTransport_APodThatDoesNotStartKeepsNoFormerUser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.scopedReady()
	first := w.loggedInAs(transport)
	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Workers[0].Replicas = new(int32(3)) }) // which nobody rolls out
	must(t, w.client.Delete(t.Context(), w.userSecret(transport)))
	testtransport.Eventually(t, "another login", func() bool { return !slices.Contains([]string{"", first}, w.loggedInAs(transport)) })
	testtransport.Eventually(t, "the former user to go", func() bool { return !w.hasUser(first) })
}

// The pods of a group that has left the spec log in as the user until their queue is empty, and there is a moment without a session whenever RabbitMQ or they
// start again.
func TestScopedUser_StaysUntilAFormerGroupsQueuesAreEmpty(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.scopedReady()
	user := w.loggedInAs(transport)
	w.hold("test")
	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Queues, t.Spec.Workers[0].Name = t.Spec.Queues[1:], "main" })
	w.awaitReady(transport)
	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Broker.ScopedUser = nil })
	w.awaitReady(transport)
	w.awaitLooks(4)
	if w.loggedInAs(transport) != user {
		t.Error("the user or its Secret is gone while a group that has left the spec empties its queue")
	}
	w.checkHeld("test")
	testtransport.Eventually(t, "the user to go", func() bool { return !w.hasUser(user) && w.userSecret(transport) == nil })
}

func TestScopedUser_SaysWhatKeepsItFromBeingMade(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		administer, allow bool
		prepare           func(w *world, transport *v1alpha1.Transport)
		reason            string
		says              []string
		cure              func(w *world, transport *v1alpha1.Transport)
	}{
		"no tag": {
			allow: true, reason: v1alpha1.ReasonBrokerRefused, says: []string{"administrator", `Secret "rabbitmq"`},
			cure: func(w *world, _ *v1alpha1.Transport) { w.administer() },
		},
		"no right to write Secrets": {
			administer: true, reason: v1alpha1.ReasonSecretForbidden, says: []string{"create, patch and delete Secrets", "config/scoped-users", "scopedUsers.enabled"},
			cure: func(w *world, _ *v1alpha1.Transport) { w.allowSecrets() },
		},
		"a user of somebody else": {
			administer: true, allow: true, reason: v1alpha1.ReasonConflict, says: []string{"did not make", "delete_user"},
			prepare: func(w *world, transport *v1alpha1.Transport) {
				name := topology.UserNames(transport, owner(w.T, w, transport))[0]
				testbroker.Shared(w).User(w, name, "monitoring", w.vhost, "", "", ".*")
			},
			cure: func(w *world, transport *v1alpha1.Transport) {
				name := topology.UserNames(transport, owner(w.T, w, transport))[0]
				user, err := w.broker.User(w.Context(), name)
				must(w.T, err)
				if !slices.Equal(user.Tags, []string{"monitoring"}) || w.rightsOf(name)[0].Read != ".*" {
					w.Errorf("somebody else's user was changed: %q, %+v", user.Tags, w.rightsOf(name))
				}
				testbroker.Shared(w).DeleteUser(w, name)
			},
		},
		"a Secret of somebody else": {
			administer: true, allow: true, reason: v1alpha1.ReasonConflict, says: []string{"did not make"},
			prepare: func(w *world, transport *v1alpha1.Transport) {
				w.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: workload.UserSecretName(transport)}})
			},
			cure: func(w *world, transport *v1alpha1.Transport) {
				must(w.T, w.client.Delete(w.Context(), w.userSecret(transport)))
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if tt.administer {
				w.administer()
			}
			if tt.allow {
				w.allowSecrets()
			}
			transport := w.ready()
			w.dropUsersOf(transport)
			if tt.prepare != nil {
				tt.prepare(w, transport)
			}
			deployment := w.deployments()[0]
			edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Broker.ScopedUser = new(true) })
			message := w.await(transport, v1alpha1.StalledCondition, metav1.ConditionTrue, tt.reason)
			for _, part := range tt.says {
				if !strings.Contains(message, part) {
					t.Errorf("the condition does not say %q: %s", part, message)
				}
			}
			w.awaitLooks(3)
			w.get(transport)
			users := topology.UserNames(transport, owner(t, w, transport))
			if now := w.deployments()[0]; now.Generation != deployment.Generation || len(transport.Status.BrokerUsers) > 0 || w.hasUser(users[1]) {
				t.Errorf("something was done: %+v", transport.Status.BrokerUsers)
			}

			t.Log("a Transport that is new never gets the team's login")
			fresh := w.scoped()
			fresh.Name, fresh.Spec.Exchange.Name = "fresh", "fresh"
			fresh.Spec.Exchange.UnroutedTo, fresh.Spec.Queues = nil, []v1alpha1.Queue{{Name: "fresh", BindingKeys: []string{"fresh"}}}
			if tt.prepare == nil {
				w.dropUsersOf(fresh)
				w.create(fresh)
				w.await(fresh, v1alpha1.StalledCondition, metav1.ConditionTrue, tt.reason)
				if n := len(w.deployments()); n != 1 {
					t.Errorf("%d Deployments", n)
				}
			}
			tt.cure(w, transport)
			w.awaitReady(transport)
			if w.loggedInAs(transport) != users[0] || !slices.ContainsFunc(w.rightsOf(users[0]), func(p broker.Permission) bool {
				return regexp.MustCompile(p.Read).MatchString("test")
			}) {
				t.Errorf("the user is %q", w.loggedInAs(transport))
			}
		})
	}
}

func TestScopedUser_KeepsTheConfigurationWithoutTheTag(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.scopedReady()
	user := w.loggedInAs(transport)
	w.password = testbroker.Shared(w).ChangePassword(w, w.user, "policymaker")
	thePasswords.add(w.namespace, w.user, w.password)
	edit(w, w.secret(), func(s *corev1.Secret) { s.StringData = map[string]string{"password": w.password} })
	configured := func() string { return w.configMaps()[0].Data[workload.ConfigKey] }
	before := configured()
	edit(w, transport, func(t *v1alpha1.Transport) {
		t.Spec.Queues = append(t.Spec.Queues, v1alpha1.Queue{Name: "third", BindingKeys: []string{"third"}})
	})
	w.await(transport, v1alpha1.StalledCondition, metav1.ConditionTrue, v1alpha1.ReasonBrokerRefused)
	w.awaitLooks(3)
	if now := configured(); now != before || w.loggedInAs(transport) != user {
		t.Errorf("the workers are told %s", now)
	}

	t.Log("turned off, the Transport does not wait for the tag")
	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Broker.ScopedUser = nil })
	testtransport.Eventually(t, "the user to be forgotten", func() bool { w.rollOut(); w.get(transport); return len(transport.Status.BrokerUsers) == 0 })
	w.awaitEvent("Retained", user)
	w.awaitReady(transport)
	if w.userSecret(transport) != nil || w.mounted() != secretName {
		t.Errorf("the pods mount %s", w.mounted())
	}
}

func TestScopedUser_GoesOnWhenTheOperatorIsKilled(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	w := newPrivateWorld(t, &operator{})
	w.administer()
	w.allowSecrets()
	transport := w.scoped()
	w.dropUsersOf(transport)
	w.create(w.policy("policy", time.Second))
	nothing := func() {}
	w.killAt("PUT", "^/api/users/", false, func() { w.create(transport) })
	w.killAt("PUT", "^/api/users/", true, nothing)
	w.killAt("PUT", "^/api/permissions/", false, nothing)
	w.killAt("PUT", "^/api/permissions/", true, nothing)
	w.awaitReady(transport)
	names := topology.UserNames(transport, owner(t, w, transport))
	if w.loggedInAs(transport) != names[0] || w.hasUser(names[1]) {
		t.Errorf("the user is %q", w.loggedInAs(transport))
	}

	t.Log("after the Secret, and before the status")
	w.get(transport)
	before := transport.DeepCopy()
	transport.Status.BrokerUsers[0].Since = nil
	must(t, w.client.Status().Patch(t.Context(), transport, client.MergeFrom(before)))
	testtransport.Eventually(t, "the status to be put right", func() bool { w.get(transport); return transport.Status.BrokerUsers[0].Since != nil })
	if w.loggedInAs(transport) != names[0] || w.hasUser(names[1]) {
		t.Errorf("the user is %q", w.loggedInAs(transport))
	}

	t.Log("while the login is changed")
	// works is true as long as workers that have read the Secret can log in.
	works := func() {
		t.Helper()
		if w.loggedInAs(transport) == "" {
			t.Error("the login in the Secret does not work")
		}
	}
	w.killAt("PUT", "^/api/users/.*-b$", true, func() {
		w.get(transport)
		before := transport.DeepCopy()
		transport.Status.BrokerUsers[0].Since = new(metav1.NewTime(time.Now().Add(-31 * 24 * time.Hour)))
		must(t, w.client.Status().Patch(t.Context(), transport, client.MergeFrom(before)))
	})
	works()
	w.killAt("PUT", "^/api/permissions/.*-b$", true, nothing)
	works()
	testtransport.Eventually(t, "the next login", func() bool { return w.loggedInAs(transport) == names[1] })
	w.killAt("DELETE", "^/api/users/.*-a$", false, nothing)
	works()
	w.killAt("DELETE", "^/api/users/.*-a$", true, nothing)
	works()
	testtransport.Eventually(t, "the former user to be forgotten", func() bool {
		w.get(transport)
		return len(transport.Status.BrokerUsers) == 1 && !w.hasUser(names[0])
	})

	t.Log("while it is deleted")
	w.killAt("DELETE", "^/api/users/.*-b$", true, func() { must(t, w.client.Delete(t.Context(), transport)) })
	w.awaitGone(transport)
	if w.hasUser(names[1]) {
		t.Error("the user is still there")
	}
}

func TestScopedUser_GoesWithItsTransport(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		before func(w *world, transport *v1alpha1.Transport)
		left   bool
	}{
		"when the queues are empty": {},
		"with Retain": {before: func(w *world, transport *v1alpha1.Transport) {
			edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.DeletionPolicy = v1alpha1.DeletionRetain })
		}},
		"with Retain and without a broker": {left: true, before: func(w *world, transport *v1alpha1.Transport) {
			edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.DeletionPolicy = v1alpha1.DeletionRetain })
			w.awaitReady(transport)
			w.proxy.down.Store(true)
		}},
		"without its Secret": {left: true, before: func(w *world, _ *v1alpha1.Transport) {
			must(w.T, w.client.Delete(w.Context(), w.secret()))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			transport := w.scopedReady()
			user := w.loggedInAs(transport)
			if tt.before != nil {
				tt.before(w, transport)
			}
			must(t, w.client.Delete(t.Context(), transport))
			w.awaitGone(transport)
			if w.hasUser(user) != tt.left {
				t.Errorf("the user is there: %v", !tt.left)
			}
			if tt.left {
				w.awaitEvent("Retained", user)
			}
			if len(w.deployments()) > 0 {
				t.Error("the workers are still there")
			}
		})
	}
}

func TestScopedUser_LeavesAUserOfOthersThatTheStatusNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.scopedReady()
	other := "of-others-" + w.namespace
	must(t, w.broker.PutUser(t.Context(), other, "of-others"))
	t.Cleanup(func() { testbroker.Shared(w).Forget(other) })
	w.proxy.down.Store(true)
	must(t, w.client.Delete(t.Context(), transport))
	w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonBrokerUnreachable)
	w.get(transport)
	before := transport.DeepCopy()
	transport.Status.BrokerUsers = append(transport.Status.BrokerUsers, v1alpha1.BrokerUser{Name: other})
	must(t, w.client.Status().Patch(t.Context(), transport, client.MergeFrom(before)))
	w.proxy.down.Store(false)
	w.awaitGone(transport)
	if !w.hasUser(other) {
		t.Error("the user of others is gone")
	}
	w.awaitEvent("Retained", other)
}
