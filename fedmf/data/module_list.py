"""The modules of CPython 3.11's standard library that code tokens are made of.

Left out are tests, tables of encodings, generated data, jokes, and files of fewer than 500 bytes.
"""

from typing import Final

_PATHS: Final = """
__future__.py _aix_support.py _bootsubprocess.py _collections_abc.py _compat_pickle.py _compression.py
_markupbase.py _osx_support.py _py_abc.py _pydecimal.py _pyio.py _sitebuiltins.py _strptime.py
_threading_local.py _weakrefset.py abc.py aifc.py argparse.py ast.py asynchat.py asyncio/__init__.py
asyncio/__main__.py asyncio/base_events.py asyncio/base_futures.py asyncio/base_subprocess.py
asyncio/base_tasks.py asyncio/constants.py asyncio/coroutines.py asyncio/events.py asyncio/exceptions.py
asyncio/format_helpers.py asyncio/futures.py asyncio/locks.py asyncio/proactor_events.py
asyncio/protocols.py asyncio/queues.py asyncio/runners.py asyncio/selector_events.py asyncio/sslproto.py
asyncio/staggered.py asyncio/streams.py asyncio/subprocess.py asyncio/taskgroups.py asyncio/tasks.py
asyncio/threads.py asyncio/timeouts.py asyncio/transports.py asyncio/trsock.py asyncio/unix_events.py
asyncio/windows_events.py asyncio/windows_utils.py asyncore.py base64.py bdb.py bisect.py bz2.py cProfile.py
calendar.py cgi.py cgitb.py chunk.py cmd.py code.py codecs.py codeop.py collections/__init__.py colorsys.py
compileall.py concurrent/futures/__init__.py concurrent/futures/_base.py concurrent/futures/process.py
concurrent/futures/thread.py configparser.py contextlib.py copy.py copyreg.py crypt.py csv.py
ctypes/__init__.py ctypes/_aix.py ctypes/_endian.py ctypes/macholib/dyld.py ctypes/macholib/dylib.py
ctypes/macholib/framework.py ctypes/util.py ctypes/wintypes.py curses/__init__.py curses/ascii.py
curses/has_key.py curses/textpad.py dataclasses.py datetime.py dbm/__init__.py dbm/dumb.py difflib.py dis.py
distutils/__init__.py distutils/_msvccompiler.py distutils/archive_util.py distutils/bcppcompiler.py
distutils/ccompiler.py distutils/cmd.py distutils/command/__init__.py distutils/command/bdist.py
distutils/command/bdist_dumb.py distutils/command/bdist_rpm.py distutils/command/build.py
distutils/command/build_clib.py distutils/command/build_ext.py distutils/command/build_py.py
distutils/command/build_scripts.py distutils/command/check.py distutils/command/clean.py
distutils/command/config.py distutils/command/install.py distutils/command/install_data.py
distutils/command/install_egg_info.py distutils/command/install_headers.py distutils/command/install_lib.py
distutils/command/install_scripts.py distutils/command/register.py distutils/command/sdist.py
distutils/command/upload.py distutils/config.py distutils/core.py distutils/cygwinccompiler.py
distutils/dep_util.py distutils/dir_util.py distutils/dist.py distutils/errors.py distutils/extension.py
distutils/fancy_getopt.py distutils/file_util.py distutils/filelist.py distutils/log.py
distutils/msvc9compiler.py distutils/msvccompiler.py distutils/spawn.py distutils/sysconfig.py
distutils/text_file.py distutils/unixccompiler.py distutils/util.py distutils/version.py
distutils/versionpredicate.py doctest.py email/__init__.py email/_encoded_words.py
email/_header_value_parser.py email/_parseaddr.py email/_policybase.py email/base64mime.py email/charset.py
email/contentmanager.py email/encoders.py email/errors.py email/feedparser.py email/generator.py
email/header.py email/headerregistry.py email/iterators.py email/message.py email/mime/application.py
email/mime/audio.py email/mime/base.py email/mime/image.py email/mime/message.py email/mime/multipart.py
email/mime/nonmultipart.py email/mime/text.py email/parser.py email/policy.py email/quoprimime.py
email/utils.py ensurepip/__init__.py ensurepip/_uninstall.py enum.py filecmp.py fileinput.py fnmatch.py
fractions.py ftplib.py functools.py genericpath.py getopt.py getpass.py gettext.py glob.py graphlib.py
gzip.py hashlib.py heapq.py hmac.py html/__init__.py html/entities.py html/parser.py http/__init__.py
http/client.py http/cookiejar.py http/cookies.py http/server.py idlelib/autocomplete.py
idlelib/autocomplete_w.py idlelib/autoexpand.py idlelib/browser.py idlelib/calltip.py idlelib/calltip_w.py
idlelib/codecontext.py idlelib/colorizer.py idlelib/config.py idlelib/config_key.py idlelib/configdialog.py
idlelib/debugger.py idlelib/debugger_r.py idlelib/debugobj.py idlelib/debugobj_r.py idlelib/delegator.py
idlelib/dynoption.py idlelib/editor.py idlelib/filelist.py idlelib/format.py idlelib/grep.py idlelib/help.py
idlelib/help_about.py idlelib/history.py idlelib/hyperparser.py idlelib/iomenu.py idlelib/macosx.py
idlelib/mainmenu.py idlelib/multicall.py idlelib/outwin.py idlelib/parenmatch.py idlelib/pathbrowser.py
idlelib/percolator.py idlelib/pyparse.py idlelib/pyshell.py idlelib/query.py idlelib/redirector.py
idlelib/replace.py idlelib/rpc.py idlelib/run.py idlelib/runscript.py idlelib/scrolledlist.py
idlelib/search.py idlelib/searchbase.py idlelib/searchengine.py idlelib/sidebar.py idlelib/squeezer.py
idlelib/stackviewer.py idlelib/statusbar.py idlelib/textview.py idlelib/tooltip.py idlelib/tree.py
idlelib/undo.py idlelib/util.py idlelib/window.py idlelib/zoomheight.py idlelib/zzdummy.py imaplib.py
imghdr.py imp.py importlib/__init__.py importlib/_abc.py importlib/_bootstrap.py
importlib/_bootstrap_external.py importlib/abc.py importlib/machinery.py importlib/metadata/__init__.py
importlib/metadata/_adapters.py importlib/metadata/_collections.py importlib/metadata/_functools.py
importlib/metadata/_itertools.py importlib/metadata/_meta.py importlib/metadata/_text.py
importlib/resources/__init__.py importlib/resources/_adapters.py importlib/resources/_common.py
importlib/resources/_itertools.py importlib/resources/_legacy.py importlib/resources/abc.py
importlib/resources/readers.py importlib/resources/simple.py importlib/util.py inspect.py io.py ipaddress.py
json/__init__.py json/decoder.py json/encoder.py json/scanner.py json/tool.py keyword.py
lib2to3/btm_matcher.py lib2to3/btm_utils.py lib2to3/fixer_base.py lib2to3/fixer_util.py
lib2to3/fixes/fix_apply.py lib2to3/fixes/fix_asserts.py lib2to3/fixes/fix_buffer.py
lib2to3/fixes/fix_dict.py lib2to3/fixes/fix_except.py lib2to3/fixes/fix_exec.py
lib2to3/fixes/fix_execfile.py lib2to3/fixes/fix_exitfunc.py lib2to3/fixes/fix_filter.py
lib2to3/fixes/fix_funcattrs.py lib2to3/fixes/fix_future.py lib2to3/fixes/fix_has_key.py
lib2to3/fixes/fix_idioms.py lib2to3/fixes/fix_import.py lib2to3/fixes/fix_imports.py
lib2to3/fixes/fix_input.py lib2to3/fixes/fix_intern.py lib2to3/fixes/fix_isinstance.py
lib2to3/fixes/fix_itertools.py lib2to3/fixes/fix_itertools_imports.py lib2to3/fixes/fix_map.py
lib2to3/fixes/fix_metaclass.py lib2to3/fixes/fix_methodattrs.py lib2to3/fixes/fix_ne.py
lib2to3/fixes/fix_next.py lib2to3/fixes/fix_nonzero.py lib2to3/fixes/fix_numliterals.py
lib2to3/fixes/fix_operator.py lib2to3/fixes/fix_paren.py lib2to3/fixes/fix_print.py
lib2to3/fixes/fix_raise.py lib2to3/fixes/fix_reduce.py lib2to3/fixes/fix_reload.py
lib2to3/fixes/fix_renames.py lib2to3/fixes/fix_repr.py lib2to3/fixes/fix_set_literal.py
lib2to3/fixes/fix_sys_exc.py lib2to3/fixes/fix_throw.py lib2to3/fixes/fix_tuple_params.py
lib2to3/fixes/fix_types.py lib2to3/fixes/fix_unicode.py lib2to3/fixes/fix_urllib.py
lib2to3/fixes/fix_ws_comma.py lib2to3/fixes/fix_xrange.py lib2to3/fixes/fix_xreadlines.py
lib2to3/fixes/fix_zip.py lib2to3/main.py lib2to3/patcomp.py lib2to3/pgen2/conv.py lib2to3/pgen2/driver.py
lib2to3/pgen2/grammar.py lib2to3/pgen2/literals.py lib2to3/pgen2/parse.py lib2to3/pgen2/pgen.py
lib2to3/pgen2/token.py lib2to3/pgen2/tokenize.py lib2to3/pygram.py lib2to3/pytree.py lib2to3/refactor.py
linecache.py locale.py logging/__init__.py logging/config.py logging/handlers.py lzma.py mailbox.py
mailcap.py mimetypes.py modulefinder.py multiprocessing/__init__.py multiprocessing/connection.py
multiprocessing/context.py multiprocessing/dummy/__init__.py multiprocessing/dummy/connection.py
multiprocessing/forkserver.py multiprocessing/heap.py multiprocessing/managers.py multiprocessing/pool.py
multiprocessing/popen_fork.py multiprocessing/popen_forkserver.py multiprocessing/popen_spawn_posix.py
multiprocessing/popen_spawn_win32.py multiprocessing/process.py multiprocessing/queues.py
multiprocessing/reduction.py multiprocessing/resource_sharer.py multiprocessing/resource_tracker.py
multiprocessing/shared_memory.py multiprocessing/sharedctypes.py multiprocessing/spawn.py
multiprocessing/synchronize.py multiprocessing/util.py netrc.py nntplib.py ntpath.py nturl2path.py
numbers.py opcode.py operator.py optparse.py os.py pathlib.py pdb.py pickle.py pickletools.py pipes.py
pkgutil.py platform.py plistlib.py poplib.py posixpath.py pprint.py profile.py pstats.py pty.py
py_compile.py pyclbr.py pydoc.py queue.py quopri.py random.py re/__init__.py re/_casefix.py re/_compiler.py
re/_constants.py re/_parser.py reprlib.py rlcompleter.py runpy.py sched.py secrets.py selectors.py shelve.py
shlex.py shutil.py signal.py site.py smtpd.py smtplib.py sndhdr.py socket.py socketserver.py
sqlite3/__init__.py sqlite3/dbapi2.py sqlite3/dump.py ssl.py stat.py statistics.py string.py stringprep.py
subprocess.py sunau.py symtable.py sysconfig.py tabnanny.py tarfile.py telnetlib.py tempfile.py textwrap.py
threading.py timeit.py tkinter/__init__.py tkinter/colorchooser.py tkinter/commondialog.py
tkinter/constants.py tkinter/dialog.py tkinter/dnd.py tkinter/filedialog.py tkinter/font.py
tkinter/messagebox.py tkinter/scrolledtext.py tkinter/simpledialog.py tkinter/tix.py tkinter/ttk.py token.py
tokenize.py tomllib/_parser.py tomllib/_re.py trace.py traceback.py tracemalloc.py tty.py turtle.py
turtledemo/__main__.py turtledemo/bytedesign.py turtledemo/chaos.py turtledemo/clock.py
turtledemo/colormixer.py turtledemo/forest.py turtledemo/fractalcurves.py turtledemo/lindenmayer.py
turtledemo/minimal_hanoi.py turtledemo/nim.py turtledemo/paint.py turtledemo/peace.py turtledemo/penrose.py
turtledemo/planet_and_moon.py turtledemo/rosette.py turtledemo/round_dance.py turtledemo/sorting_animate.py
turtledemo/tree.py turtledemo/two_canvases.py turtledemo/yinyang.py types.py typing.py unittest/__init__.py
unittest/_log.py unittest/async_case.py unittest/case.py unittest/loader.py unittest/main.py
unittest/mock.py unittest/result.py unittest/runner.py unittest/signals.py unittest/suite.py
unittest/util.py urllib/error.py urllib/parse.py urllib/request.py urllib/response.py urllib/robotparser.py
uu.py uuid.py venv/__init__.py warnings.py wave.py weakref.py webbrowser.py wsgiref/__init__.py
wsgiref/handlers.py wsgiref/headers.py wsgiref/simple_server.py wsgiref/types.py wsgiref/util.py
wsgiref/validate.py xdrlib.py xml/__init__.py xml/dom/NodeFilter.py xml/dom/__init__.py xml/dom/domreg.py
xml/dom/expatbuilder.py xml/dom/minicompat.py xml/dom/minidom.py xml/dom/pulldom.py xml/dom/xmlbuilder.py
xml/etree/ElementInclude.py xml/etree/ElementPath.py xml/etree/ElementTree.py xml/etree/__init__.py
xml/sax/__init__.py xml/sax/_exceptions.py xml/sax/expatreader.py xml/sax/handler.py xml/sax/saxutils.py
xml/sax/xmlreader.py xmlrpc/client.py xmlrpc/server.py zipapp.py zipfile.py zipimport.py
zoneinfo/__init__.py zoneinfo/_common.py zoneinfo/_tzpath.py zoneinfo/_zoneinfo.py
"""

#: Paths below the library's folder, in order.
MODULES: Final = tuple(_PATHS.split())
