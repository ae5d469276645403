#!/usr/bin/env bash
# Checks the chart: `helm lint`, and what `helm template` makes of several values against Kubernetes' own schema; and that wrong
# values are refused. Then runs what its pods run, on loopback: a set and a cluster come to be, and their first user logs in.
#
#     packaging/try/helm.sh CHART.tgz WORK [BIN]        BIN: the directory of `pando`; without it nothing is run
#
# helm and kubeconform are taken from PATH, or built from the Go module proxy, which has Kubernetes' schema too.
set -euo pipefail
chart=$(realpath "$1") work=$2 bin=${3:-}
here=$(dirname "$(realpath "$0")")
mkdir -p "$work/bin" "$work/schemas" "$work/out"
PATH=$work/bin:$PATH

want() {
    command -v "$1" >/dev/null || GOBIN=$work/bin go install "$2"
}
want helm helm.sh/helm/v3/cmd/helm@v3.14.4
want kubeconform github.com/yannh/kubeconform/cmd/kubeconform@v0.6.7
# A helm that was not built by its makers takes Kubernetes for an old one.
kube=1.31.4
kubernetes=$(cd "$work" && go mod download -json "k8s.io/kubernetes@v$kube" | sed -n 's/^\t"Dir": "\(.*\)",*$/\1/p')
python3 "$here/kubernetes_schemas.py" "$kubernetes/api/openapi-spec/swagger.json" "$work/schemas"

helm lint --strict --kube-version "$kube" "$chart"

schema=$work/schemas/'{{.ResourceKind}}{{.KindSuffix}}.json'
# conforms NAME KINDS FLAG…: the manifests of these values are Kubernetes', and there are so many of them.
conforms() {
    local name=$1 count=$2
    shift 2
    helm template try "$chart" --kube-version "$kube" --namespace shop "$@" >"$work/out/$name.yaml"
    kubeconform -strict -summary -schema-location "$schema" "$work/out/$name.yaml"
    [ "$(grep -c '^kind:' "$work/out/$name.yaml")" = "$count" ] || { echo "$name: not $count objects"; exit 1; }
}
conforms set 5
conforms alone 5 --set set.members=1 --set metrics.enabled=true --set storage.className=fast --set 'extraArgs={--oplogSize=4096}'
# Secret, scripts; a service, a budget and the members of config, s0 and s1; a service and routers.
conforms cluster 13 --set mode=cluster
conforms tls 12 --set mode=cluster --set tls.secretName=certs --set tls.mode=requireTLS --set auth.existingSecret=own \
    --set 'tolerations[0].key=data' --set nodeSelector.disk=ssd --set 'imagePullSecrets[0].name=pull'

# The check can fail: a field that is not Kubernetes' is found.
sed 's/  serviceName:/  servicename:/' "$work/out/set.yaml" >"$work/out/bent.yaml"
if kubeconform -strict -schema-location "$schema" "$work/out/bent.yaml" >/dev/null; then echo "a wrong field was not found"; exit 1; fi
for wrong in set.members=2 mode=both set.member=3 tls.mode=none storage.size=big cluster.shards=0; do
    if helm template try "$chart" --kube-version "$kube" --set "$wrong" >/dev/null 2>"$work/out/refusal"; then echo "$wrong was not refused"; exit 1; fi
    grep -q 'schema' "$work/out/refusal" || { cat "$work/out/refusal"; exit 1; }
done
echo "the chart conforms"

[ -n "$bin" ] || { echo "nothing was run: no program was given"; exit 0; }
bash "$here/helm_run.sh" "$chart" "$work/run" "$bin"
