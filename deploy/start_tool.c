/* The process that waits for the next order to start a program, and becomes that program.
 *
 *     start_tool UID GID GROUP_BASE
 *
 * The tool spawner starts it ahead (sandbox/daemon/supervisor/waiting_process.py). Standard input is its end of a
 * SOCK_SEQPACKET pair, from which one order comes as the spawner got it: kind and call, then the program, or none if
 * that is in a file, the first descriptor (control_wire.py). Standard output is a pipe for the outcome: nothing once the
 * program is executed, else "OSError:ERRNO:", as CPython's fork_exec writes it.
 *
 * It waits as root, as the tool spawner does, so that tool code can neither signal nor trace it, nor open its files in
 * /proc. It becomes the tool user with the order, right before the exec. What it holds until then is its two ends.
 *
 * There is no C library: the start of one takes longer than all that is done here, as it asks the processor for its
 * features, which a virtual machine answers slowly. */
#include <asm/errno.h>
#include <asm/ioctls.h>
#include <linux/fcntl.h>
#include <linux/mman.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum { SPAWN_TTY = 4, DESCRIPTORS = 4, CALL_NUMBERS = 1 << 30, PATH_BYTES = 4096, ROOM_BYTES = 8192 };

struct order {
    int kind, call;
    char program[ROOM_BYTES];
};

/* A system call returns -errno if it fails. */
static long call6(long number, long a, long b, long c, long d, long e, long f)
{
#if defined(__x86_64__)
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;

    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;

    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
#else
#error "the filter of tool code knows no other machine either (tool_filter.py)"
#endif
}

#define call4(number, a, b, c, d) call6(number, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define call3(number, a, b, c) call4(number, a, b, c, 0)

#if defined(__x86_64__)
__asm__(".globl _start\n_start: xor %ebp, %ebp\n mov %rsp, %rdi\n and $-16, %rsp\n call begin\n");
#else
__asm__(".globl _start\n_start: mov x29, 0\n mov x30, 0\n mov x0, sp\n bl begin\n");
#endif

static int outcome = 1;

static void leave(int status)
{
    for (;;)
        call3(SYS_exit_group, status, 0, 0);
}

/* Return the result of a system call; if it failed, report that and end. */
static long done(long result)
{
    static const char digits[] = "0123456789abcdef";
    char text[] = "OSError:00:";

    if (result >= 0)
        return result;
    if (result < -255)
        result = -EIO; /* no number that programs know */
    text[8] = digits[-result >> 4];
    text[9] = digits[-result & 15];
    call3(SYS_write, outcome, text, sizeof text - 1);
    leave(255);
    return 0;
}

static size_t length_of(const char *text)
{
    size_t length = 0;

    while (text[length] != '\0')
        length++;
    return length;
}

static unsigned long number_in(const char *text)
{
    unsigned long number = 0;

    while (*text >= '0' && *text <= '9')
        number = number * 10 + (*text++ - '0');
    return number;
}

static void *memory(size_t size)
{
    return (void *)done(
        call6(SYS_mmap, 0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

/* Wait for the order and return the size of its program; end when the tool spawner has. */
static size_t receive(struct order *order, int fds[DESCRIPTORS])
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(DESCRIPTORS * sizeof(int))];
    } control;
    struct iovec data = {order, sizeof *order - 1};
    struct msghdr message = {0, 0, &data, 1, &control, sizeof control, 0};
    struct cmsghdr *part = &control.header;
    size_t count;
    long size;

    do
        size = call3(SYS_recvmsg, 0, &message, MSG_CMSG_CLOEXEC);
    while (size == -EINTR);
    if (done(size) == 0)
        leave(0);
    if (size < (long)offsetof(struct order, program) || message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)
        || message.msg_controllen < sizeof *part || part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
        done(-EINVAL);
    count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t each = 0; each < count && each < DESCRIPTORS; each++)
        fds[each] = ((int *)CMSG_DATA(part))[each];
    return size - offsetof(struct order, program);
}

/* Return what is in a file, with a NUL after it. */
static char *read_file(int fd, size_t *size)
{
    char *text;

    *size = done(call3(SYS_lseek, fd, 0, 2));
    text = memory(*size + 1);
    for (size_t at = 0; at < *size;) {
        long piece = done(call4(SYS_pread64, fd, text + at, *size - at, at));

        if (piece == 0)
            done(-EIO);
        at += piece;
    }
    return text;
}

/* Divide a program's text into its directory, which is returned, and the arguments and the environment in `items`. */
static char *divide(char *text, size_t size, char ***items, size_t *arguments)
{
    char *directory = text;
    size_t fields = 1;

    for (size_t at = 0; at < size; at++)
        fields += text[at] == '\0';
    if (fields < 3)
        done(-EINVAL);
    text += length_of(text) + 1;
    *arguments = number_in(text);
    if (*arguments < 1 || *arguments > fields - 2)
        done(-EINVAL);
    *items = memory(fields * sizeof **items); /* with a null pointer after the arguments, and one after the environment */
    for (size_t field = 0; field < fields - 2; field++) {
        text += length_of(text) + 1;
        (*items)[field + (field >= *arguments)] = text;
    }
    return directory;
}

/* Execute the first of the program's places where that can be done, as CPython's fork_exec does; report why none can. */
static void execute(char **arguments, char **environment)
{
    const char *name = arguments[0], *places = "/bin:/usr/bin"; /* os.defpath */
    size_t length = length_of(name);
    long error, lasting = 0;
    char path[PATH_BYTES];

    for (size_t at = 0; at < length; at++)
        if (name[at] == '/')
            done(call3(SYS_execve, name, arguments, environment));
    for (char **item = environment; *item != NULL; item++)
        if ((*item)[0] == 'P' && (*item)[1] == 'A' && (*item)[2] == 'T' && (*item)[3] == 'H' && (*item)[4] == '=')
            places = *item + 5;
    for (;; places++) {
        size_t size = 0;

        error = -ENAMETOOLONG;
        for (; *places != '\0' && *places != ':'; places++)
            if (size < sizeof path)
                path[size++] = *places;
        if (size + length + 2 <= sizeof path) {
            if (size > 0)
                path[size++] = '/';
            for (size_t at = 0; at <= length; at++)
                path[size + at] = name[at];
            error = call3(SYS_execve, path, arguments, environment);
        }
        if (error != -ENOENT && error != -ENOTDIR && lasting == 0)
            lasting = error;
        if (*places == '\0')
            done(lasting ? lasting : error);
    }
}

__attribute__((noreturn, used)) void begin(long *stack)
{
    char **argv = (char **)(stack + 1), **items, *directory;
    int fds[DESCRIPTORS] = {-1, -1, -1, -1}, *given = fds, input;
    static struct order order;
    unsigned int uid, gid, group;
    size_t size, arguments;
    char *program;

    if (stack[0] != 4)
        leave(64);
    uid = number_in(argv[1]);
    gid = number_in(argv[2]);
    /* Above what a program gets, and closed by the exec. */
    outcome = done(call3(SYS_fcntl, 1, F_DUPFD_CLOEXEC, 3));
    input = done(call4(SYS_openat, AT_FDCWD, "/dev/null", O_RDONLY | O_CLOEXEC, 0));

    size = receive(&order, fds);
    group = number_in(argv[3]) + order.call % CALL_NUMBERS;
    program = size > 0 ? order.program : read_file(*given++, &size);
    directory = divide(program, size, &items, &arguments);
    if (order.kind == SPAWN_TTY)
        given[1] = given[2] = input = given[0];
    else { /* stdout, stderr and, for some, stdin */
        input = given[2] >= 0 ? given[2] : input;
        given[2] = given[1];
        given[1] = given[0];
    }
    done(call3(SYS_dup3, input, 0, 0));
    done(call3(SYS_dup3, given[1], 1, 0));
    done(call3(SYS_dup3, given[2], 2, 0));
    done(call3(SYS_setgroups, 1, &group, 0));
    done(call3(SYS_setresgid, gid, gid, gid));
    done(call3(SYS_setresuid, uid, uid, uid));
    if (order.kind == SPAWN_TTY)
        done(call3(SYS_ioctl, 0, TIOCSCTTY, 0));
    done(call3(SYS_chdir, directory, 0, 0));
    execute(items, items + arguments + 1);
    leave(255);
    __builtin_unreachable();
}
