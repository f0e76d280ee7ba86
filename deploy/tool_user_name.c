/* Name service: gives every tool user the name "sandbox", so that `ssh`, `whoami` and getpwuid() work.
 *
 * The user id of a sandbox is chosen when it is created, so /etc/passwd of an image cannot contain it. */
#define _GNU_SOURCE
#include <errno.h>
#include <nss.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* As _FIRST_USER in sandbox/engines/docker/container_config.py. */
static const uid_t first_user = 600000000;

enum nss_status _nss_tool_user_getpwuid_r(uid_t uid, struct passwd *entry, char *buffer, size_t size, int *error)
{
    const char *home = secure_getenv("HOME");

    if (uid < first_user)
        return NSS_STATUS_NOTFOUND;
    if (home == NULL)
        home = "/";
    if (strlen(home) >= size) {
        *error = ERANGE;
        return NSS_STATUS_TRYAGAIN;
    }
    *entry = (struct passwd){
        .pw_name = "sandbox", .pw_passwd = "x", .pw_uid = uid, .pw_gid = uid, .pw_gecos = "",
        .pw_dir = strcpy(buffer, home), .pw_shell = "/bin/bash",
    };
    return NSS_STATUS_SUCCESS;
}

enum nss_status _nss_tool_user_getpwnam_r(const char *name, struct passwd *entry, char *buffer, size_t size, int *error)
{
    if (strcmp(name, "sandbox") != 0)
        return NSS_STATUS_NOTFOUND;
    return _nss_tool_user_getpwuid_r(getuid(), entry, buffer, size, error);
}
